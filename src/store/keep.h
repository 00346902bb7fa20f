// SPDX-License-Identifier: Apache-2.0
// What stores have in common: which entries a question is about, and what a put leaves.
#pragma once

#include <optional>
#include <string>

#include <ejk/store.h>

namespace ejk::detail {

// An entry without a spec answers every call with its key, and a question without one is answered
// by every entry with that key.
bool serves(const Entry& entry, const EntryId& id);
// 32 hex digits of all of it.
std::string call_id(const EntryId& id);
bool same_call(const EntryId& a, const EntryId& b);
bool same_place(const Entry& a, const Entry& b);  // call and environment

// That of the device that an entry is for, if that is here; else the CPU's.
const Value& environment_here(const EntryId& id);

// 64 hex digits of all that is known of an entry: they decide between entries that are equal
// otherwise, in every store alike. Unknown members do not count: they are of both.
std::string content_digest(const Entry& entry);

// What is to be written when `entry` is put where `there` stands: the better one, or `entry` if
// IfPresent::replace, with the unknown members of both; where both have one, that of the better one
// stays. nullopt: nothing changes.
std::optional<Entry> kept(const Entry& entry, const Entry& there, IfPresent if_present);

// Whether a put of `entry` with IfPresent::replace removes `other`, of the same call.
bool stands_in_the_way(const Entry& other, const Entry& entry);

}  // namespace ejk::detail
