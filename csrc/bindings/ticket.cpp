// SPDX-License-Identifier: Apache-2.0
// Tickets for Python.
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "bindings/bindings.h"
#include "bindings/cache_box.h"
#include "layout/residency.h"

namespace py = pybind11;

namespace hkv {
namespace {

py::object admit(const std::shared_ptr<CacheBox>& box, const std::shared_ptr<const KeyChain>& start,
                 std::int64_t max_tokens, std::int64_t states,
                 const std::optional<std::shared_ptr<LeaseBox>>& lease, const py::object& formats,
                 const py::tuple& keep, bool lease_waits, std::uint32_t groups) {
  HybridCache& cache = box->cache;
  const std::vector<FormatId> writer = formats_from(cache, formats);
  AdmitQuestion question;
  question.start = start;
  question.max_tokens = max_tokens;
  question.states = states;
  question.groups = groups;
  question.formats = writer.empty() ? cache.spec_formats() : std::span<const FormatId>(writer);
  if (lease) {
    question.lease = &(*lease)->open();
    question.start = question.lease->keys;
  }
  question.lease_waits = lease_waits;
  question.keep = {keep[0].cast<bool>(), keep[1].cast<bool>(), keep[2].cast<std::int64_t>(),
                   keep[3].cast<std::int64_t>(), keep[4].cast<std::int64_t>()};
  NotAdmitted refused;
  std::unique_ptr<Ticket> ticket = cache.admit(question, refused);
  if (ticket == nullptr) return py::make_tuple(static_cast<int>(refused.reason), refused.group);
  if (lease) (*lease)->taken = true;
  return py::cast(std::make_unique<TicketBox>(box, lease ? *lease : nullptr, std::move(ticket)));
}

py::array_t<std::int32_t> pages_array(std::size_t n) {
  return py::array_t<std::int32_t>(static_cast<py::ssize_t>(n));
}

std::int32_t page_number(PageId page) {
  return page == no_page ? -1 : static_cast<std::int32_t>(index(page));
}

// Returns: for each group the pages this call took: of new own blocks, or of the states named.
py::list grow(TicketBox& box, std::int64_t tokens, const std::vector<std::int64_t>& states) {
  Ticket& ticket = *box.ticket;
  std::vector<std::size_t> had;
  for (const Ticket::Hand& hand : ticket.hands)
    had.push_back(hand.live_group ? hand.states.size() : hand.blocks.size());
  box.box->cache.grow(ticket, tokens, states);
  py::list result;
  for (std::size_t g = 0; g < ticket.hands.size(); ++g) {
    const Ticket::Hand& hand = ticket.hands[g];
    if (!hand.live_group) {
      auto pages = pages_array(hand.blocks.size() - had[g]);
      for (std::size_t i = had[g]; i < hand.blocks.size(); ++i)
        pages.mutable_at(static_cast<py::ssize_t>(i - had[g])) = page_number(hand.blocks[i].page);
      result.append(std::move(pages));
      continue;
    }
    const Group& group = box.box->cache.layout().groups[g];
    // Of a group with a page for each block that is not used there are no new blocks.
    const bool live = is_live_group(group, box.box->cache.layout().block_tokens(group));
    auto pages = pages_array(live ? states.size() : 0);
    for (std::size_t i = 0; live && i < states.size(); ++i) {
      PageId page = no_page;
      for (std::size_t s = had[g]; s < hand.states.size(); ++s) {
        if (hand.states[s].tokens == states[i]) page = hand.states[s].page;
      }
      pages.mutable_at(static_cast<py::ssize_t>(i)) = page_number(page);
    }
    result.append(std::move(pages));
  }
  return result;
}

py::array_t<std::int32_t> rows_of(const std::vector<PageCopy>& copies, int group) {
  const auto wanted =
      std::count_if(copies.begin(), copies.end(), [&](const PageCopy& c) { return c.group == group; });
  py::array_t<std::int32_t> out({static_cast<py::ssize_t>(wanted), py::ssize_t{3}});
  py::ssize_t row = 0;
  for (const PageCopy& copy : copies) {
    if (copy.group != group) continue;
    out.mutable_at(row, 0) = page_number(copy.source);
    out.mutable_at(row, 1) = page_number(copy.target);
    out.mutable_at(row, 2) = copy.rows;
    ++row;
  }
  return out;
}

// Returns: {group: copies} of the groups that have any.
py::dict advance(TicketBox& box, std::int64_t computed, const py::object& tokens,
                 const std::optional<std::shared_ptr<const KeyChain>>& keys,
                 const std::vector<std::int64_t>& states, bool settles) {
  HybridCache& cache = box.box->cache;
  Ticket& ticket = *box.ticket;
  cache.check_advance(ticket, computed, states);
  const std::int64_t wanted = computed - ticket.advanced;
  if (keys) {
    ticket.keys.follow(*keys, computed);
  } else if (!tokens.is_none()) {
    const TokenView view = token_view(tokens);
    if (view.count != wanted)
      throw Error(ErrorCode::ArgumentError, "tokens", std::to_string(wanted) + " token ids",
                  std::to_string(view.count));
    ticket.keys.append(view, 0, wanted);
  } else if (wanted != 0) {
    throw Error(ErrorCode::ArgumentError, "tokens", std::to_string(wanted) + " token ids, or keys",
                "neither");
  }
  cache.advance(ticket, computed, states, std::numeric_limits<std::int64_t>::max(), settles);
  py::dict result;
  for (const PageCopy& copy : ticket.step_copies)
    result[py::int_(copy.group)] = rows_of(ticket.step_copies, copy.group);
  return result;
}

std::vector<std::uint32_t> pages_of(const TicketBox& box, int group) {
  if (box.ticket->closed) throw Error(ErrorCode::Closed, "ticket", "an open ticket", "a closed one");
  std::vector<std::uint32_t> pages;
  box.box->cache.page_ids(*box.ticket, group, pages);
  return pages;
}

std::int64_t held_pages(const TicketBox& box) {
  std::int64_t held = 0;
  for (std::size_t g = 0; g < box.ticket->hands.size(); ++g) {
    const Ticket::Hand& hand = box.ticket->hands[g];
    held += hand.live != no_page ? 1 : 0;
    std::vector<std::uint32_t> pages;
    box.box->cache.page_ids(*box.ticket, static_cast<int>(g), pages);
    held += std::count_if(pages.begin(), pages.end(), [](std::uint32_t page) { return page != none_u32; });
  }
  return held;
}

void bind_looks(py::class_<TicketBox>& ticket) {
  ticket.def_property_readonly("tokens", [](const TicketBox& box) { return box.ticket->advanced; })
      .def_property_readonly("grown_tokens", [](const TicketBox& box) { return box.ticket->grown; })
      .def_property_readonly("start_tokens", [](const TicketBox& box) { return box.ticket->start_tokens; })
      .def_property_readonly("max_tokens", [](const TicketBox& box) { return box.ticket->max_tokens; })
      .def_property_readonly("eager", [](const TicketBox& box) { return box.ticket->eager; })
      .def_property_readonly("handle", [](const TicketBox& box) { return box.ticket->handle; })
      .def_property_readonly("closed", [](const TicketBox& box) { return box.ticket->closed; })
      .def_property_readonly("ended", [](const TicketBox& box) { return box.ticket->ended; })
      .def("held_pages", &held_pages)
      .def("chain", [](const TicketBox& box) { return box.ticket->keys.chain(); })
      .def_property_readonly("failed", [](const TicketBox& box) { return box.ticket->failed; })
      .def_property_readonly("number", [](const TicketBox& box) { return box.ticket->share.number; });
}

}  // namespace

void bind_ticket(py::module_& m) {
  py::class_<TicketBox> ticket(m, "Ticket");
  bind_looks(ticket);
  ticket.def("grow", &grow, py::arg("tokens"), py::arg("states"))
      .def("advance", &advance, py::arg("computed_tokens"), py::arg("tokens"), py::arg("keys"),
           py::arg("states"), py::arg("settles"))
      .def(
          "settle_advance",
          [](TicketBox& box, std::int64_t upto, std::int64_t copied_upto) {
            if (!box.ticket->ended) box.box->cache.settle_advance(*box.ticket, upto, copied_upto);
          },
          py::arg("upto"), py::arg("copied_upto"))
      .def(
          "rewind",
          [](TicketBox& box, std::int64_t tokens) { return box.box->cache.rewind(*box.ticket, tokens); },
          py::arg("tokens"))
      .def(
          "give_back_parked",
          [](TicketBox& box, std::size_t count) {
            if (!box.ticket->ended) box.box->cache.give_back_parked(*box.ticket, count);
          },
          py::arg("count"))
      .def(
          "fail", [](TicketBox& box, int kind) { box.box->cache.fail(*box.ticket, kind); }, py::arg("kind"))
      .def("withhold", [](TicketBox& box) { box.box->cache.withhold(*box.ticket); })
      .def("close", [](TicketBox& box) { box.box->cache.close(*box.ticket); })
      .def(
          "end", [](TicketBox& box, bool keep_tip) { box.end(keep_tip, false); }, py::arg("keep_tip"))
      .def("abandon", &TicketBox::abandon)
      .def("lose", &TicketBox::lose)
      .def(
          "page_ids", [](const TicketBox& box, int group) { return page_array(pages_of(box, group)); },
          py::arg("group"))
      .def(
          "handouts",
          [](const TicketBox& box, int group) {
            return handouts_of(box.box->cache, group, pages_of(box, group));
          },
          py::arg("group"))
      .def(
          "addresses",
          [](const TicketBox& box, int group) {
            return addresses_of(box.box->cache, group, pages_of(box, group));
          },
          py::arg("group"))
      .def(
          "live_page",
          [](const TicketBox& box, int group) { return page_number(box.ticket->hands[group].live); },
          py::arg("group"))
      .def(
          "copies", [](const TicketBox& box, int group) { return rows_of(box.ticket->copies, group); },
          py::arg("group"))
      .def(
          "preempted_before",
          [](const TicketBox& box, const TicketBox& other, int how) {
            return preempted_before(static_cast<Preempt>(how), box.box->cache.layout(), box.ticket->share,
                                    other.ticket->share);
          },
          py::arg("other"), py::arg("how"));
  m.def("admit", &admit, py::arg("cache"), py::arg("start"), py::arg("max_tokens"), py::arg("states"),
        py::arg("lease"), py::arg("formats"), py::arg("keep"), py::arg("lease_waits"), py::arg("groups"));
  bind_step(m);
}

}  // namespace hkv
