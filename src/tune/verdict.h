// SPDX-License-Identifier: Apache-2.0
// What follows from the samples of a contest: who is slower, who leads, who wins.
#pragma once

#include <vector>

#include "tune/contest.h"

namespace ejk::detail {

// Round by round, of the rounds in which both took part.
std::vector<double> ratios(const Contest& contest, EntrantId over, EntrantId under);
// How far the incumbent's time may be off, relative.
double noise(const Contest& contest);
bool clearly_slower(const Contest& contest, EntrantId rival, EntrantId best);
bool fast_enough(const Contest& contest, EntrantId who);
// The candidate with the smallest time. At least one can win.
EntrantId leader(const Contest& contest);
bool incumbent_can_win(const Contest& contest);
// No candidate looks better than the incumbent.
bool incumbent_leads(const Contest& contest);
// True if another round could not change the choice, or not for a gain that is worth it.
bool settled(const Contest& contest, EntrantId best);
// At least one can win.
EntrantId pick(const Contest& contest);
// Whether a heuristic that is not a candidate stays although the candidates have a winner.
bool heuristic_stays(const Contest& contest, EntrantId winner);
// Unresolved: several could have won and not one of them could be told from the incumbent.
Outcome outcome_of(const Contest& contest, EntrantId winner);

}  // namespace ejk::detail
