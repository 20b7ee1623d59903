#pragma once

#include <string>
#include <vector>

#include "train/checkpoint/saved_state.hpp"
#include "train/checkpoint/training_details.hpp"
#include "train/checkpoint/training_view.hpp"

namespace kolo::train {

/// The options that a load gives to the program's parameter groups, which have `own` now: to each
/// those of the saved group with the same members, whatever their order is. A group of which none
/// was saved keeps its own. Without `strict`, so does one whose members were in several.
///
/// Throws InvalidArgument for other options than the program's class has. With `strict`, also if
/// members of one group are in several groups on the other side, and if one side has switched on
/// what the other has not: an option other than the learning rate that is 0 on one side alone.
std::vector<TrainingDetails::Options> options_from(const SavedTraining& saved,
                                                   const TrainingView& view,
                                                   const std::vector<TrainingDetails::Options>& own,
                                                   bool strict);

/// What such a load changes, such as "lr of parameter group 0: 0.1, now 0.05".
std::vector<std::string> changes(const std::vector<TrainingDetails::Options>& own,
                                 const std::vector<TrainingDetails::Options>& loaded);

}  // namespace kolo::train
