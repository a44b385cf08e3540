/// \file
/// The head on a GPU.
#pragma once

#include "place.hpp"

namespace language_model {

std::unique_ptr<Place> make_cuda_place(const World& world, int gpu);

}  // namespace language_model
