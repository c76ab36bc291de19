# SPDX-License-Identifier: Apache-2.0
"""The rotary embedding that rows went through, from either way that configurations tell it.

Older files have ``rope_theta`` and ``rope_scaling``, newer ones ``rope_parameters``, which may be nested by
layer type. Both ways of telling one embedding give one answer, since it goes into the fingerprint of formats.
"""

from __future__ import annotations

from collections.abc import Mapping

from hybridkv.models.reader import SLIDING, ConfigReader

TOLD_APART = ("type", "rope_type", "rope_theta", "partial_rotary_factor")
"""Parameters that are told elsewhere in a format."""


def rotation(
    config: ConfigReader, layer_type: str, leave_out: tuple[str, ...] = ()
) -> tuple[float | None, dict[str, object] | None]:
    """Return the base and the scaling of the rotary embedding of a type of layer.

    Parameters
    ----------
    config : ConfigReader
        The text model's configuration.
    layer_type : str
        Key into ``rope_parameters`` where those are nested.
    leave_out : tuple of str, optional
        Further parameters that the family fixes, so that files need not name them.

    Returns
    -------
    theta : float or None
        None where the configuration does not tell it.
    scaling : dict of str to scalar, or None
        None where positions are not scaled.
    """
    theta = config.number("rope_theta")
    parameters, where = config.get("rope_parameters"), "rope_parameters"
    if parameters is not None and not isinstance(parameters, Mapping):
        raise config.refuse(where, "a mapping")
    if parameters:
        nested = parameters.get(layer_type)
        parameters = nested if isinstance(nested, Mapping) else parameters
        own = parameters.get("rope_theta")
        theta = theta if own is None else config.finite("rope_parameters.rope_theta", own)
    elif layer_type == SLIDING and config.get("rope_local_base_freq") is not None:
        return config.number("rope_local_base_freq"), None
    else:
        parameters, where = config.get("rope_scaling"), "rope_scaling"
    if parameters is None:
        return theta, None
    if not isinstance(parameters, Mapping):
        raise config.refuse(where, "a mapping")
    kind = parameters.get("rope_type", parameters.get("type"))
    if kind is not None and not isinstance(kind, str):
        raise config.refuse(f"{where}.rope_type", "a str", kind)
    scaling: dict[str, object] = {
        str(name): value if isinstance(value, (int, float, str)) else str(value)
        for name, value in parameters.items()
        if name not in TOLD_APART + leave_out and value is not None and not isinstance(value, Mapping)
    }
    if kind is not None and kind != "default":
        scaling["type"] = kind
    return theta, scaling or None
