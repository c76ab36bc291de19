# SPDX-License-Identifier: Apache-2.0
"""Bugs of parsers of others' bytes that fuzz runs are made to notice: errors of no type of ours, waits, sizes."""

from __future__ import annotations

from seeded_bugs import Bug

FUZZ = "tests/python/test_fuzz.py::test_no_input_breaks_a_parser"
WITH_TORCH = "tests/python/test_fuzz.py::test_no_input_breaks_a_parser_that_needs_torch"
FILES = "tests/python/test_foreign_files.py"
WEIGHTS, CLI = "python/hybridkv/adapters/transformers/weights.py", "python/hybridkv/cli.py"
MANIFEST, DOCUMENTS = "python/hybridkv/formats/manifest.py", "python/hybridkv/doctor/documents.py"

BUGS = [
    Bug(
        "manifest nested without end",
        "a manifest of lists in lists breaks its reader",
        MANIFEST,
        "    except (ValueError, RecursionError) as why:",
        "    except ValueError as why:",
        FUZZ,
    ),
    Bug(
        "part of a manifest unchecked",
        "a name of a part that is none breaks the reader of manifests",
        MANIFEST,
        "    if any(not isinstance(name, str) for name, _ in value):\n",
        "    if any(name is None for name, _ in value):\n",
        FUZZ,
    ),
    Bug(
        "name that no file can have",
        "a path with a NUL breaks the reader of files of manifests",
        "python/hybridkv/formats/manifest_file.py",
        "    except (OSError, ValueError) as why:",
        "    except OSError as why:",
        FUZZ,
    ),
    Bug(
        "link of manifests followed",
        "a file of manifests is read through a link, and put in its place",
        "python/hybridkv/formats/manifest_file.py",
        "MOST_FILE_BYTES, follow=False)",
        "MOST_FILE_BYTES)",
        FILES,
    ),
    Bug(
        "unknown field of a format",
        "a document of a format with a field that none has breaks its reader",
        "python/hybridkv/formats/documents.py",
        "    if unknown := sorted(declared.keys() - known):",
        "    if unknown := sorted(set() - known):",
        FUZZ,
    ),
    Bug(
        "surrogate printed as it is",
        "half a surrogate pair in facts of a host breaks doctor --compare",
        CLI,
        '    stdout.reconfigure(errors="backslashreplace")\n',
        '    stdout.reconfigure(errors="strict")\n',
        FILES,
    ),
    Bug(
        "fact of another type",
        "facts of a host that are no text break doctor --compare",
        DOCUMENTS,
        "        if value is not None and not isinstance(value, kind):\n",
        "        if isinstance(value, float) and kind is not float:\n",
        FUZZ,
    ),
    Bug(
        "counter that is none",
        "a counter that is text breaks doctor --cache",
        DOCUMENTS,
        "        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:\n",
        "        if isinstance(value, (int, float)) and value < 0:\n",
        FUZZ,
    ),
    Bug(
        "entry that is no mapping",
        "a weights file whose header holds other things than tensors breaks the digest of its checkpoint",
        WEIGHTS,
        "    except (OSError, ValueError, TypeError, KeyError,",
        "    except (OSError, ValueError, KeyError,",
        WITH_TORCH,
        needs="transformers",
    ),
    Bug(
        "text that is no digest",
        "a text that is no hexadecimal breaks what the command line names",
        "python/hybridkv/store_report.py",
        '    except ValueError:\n        found = b""\n',
        '    except KeyError:\n        found = b""\n',
        FUZZ,
    ),
    Bug(
        "offset without end",
        "a weights file that states an infinite offset breaks the digest of its checkpoint",
        WEIGHTS,
        "AttributeError, OverflowError, RecursionError):",
        "AttributeError, RecursionError):",
        f"{FILES}::test_an_offset_that_is_no_number_makes_a_checkpoint_unreadable",
        needs="transformers",
    ),
    Bug(
        "row format nested without end",
        "the text of a row format of lists in lists breaks its reader",
        "python/hybridkv/adapters/torch_ops/arguments.py",
        "    except (ValueError, TypeError, KeyError, RecursionError) as error:",
        "    except (ValueError, TypeError, KeyError) as error:",
        WITH_TORCH,
        needs="transformers",
    ),
    Bug(
        "pipe waited for",
        "a pipe where a file is expected is waited for without end",
        "python/hybridkv/regular_file.py",
        "os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK |",
        "os.O_RDONLY | os.O_CLOEXEC |",
        FILES,
    ),
    Bug(
        "configuration without bound",
        "a configuration is read whatever its size",
        "python/hybridkv/spec.py",
        "read_regular(path, MOST_CONFIG_BYTES)",
        "read_regular(path, 2 * MOST_CONFIG_BYTES)",
        FILES,
    ),
    Bug(
        "line without bound",
        "a line of a trace is read whatever its length",
        "python/hybridkv/replay/trace.py",
        "                if len(line) > MOST_LINE:\n",
        "                if len(line) > 1 << 62:\n",
        FILES,
    ),
]
