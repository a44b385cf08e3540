# Finds NCCL's header and library, of one version.
#
# Hints: NCCL_ROOT (CMake or environment variable): a prefix, or the folder of a Python wheel
# (.../site-packages/nvidia/nccl). The CUDA toolkit's own folders are looked at too.
#
# Defines NCCL::NCCL, NCCL_FOUND, NCCL_VERSION, NCCL_INCLUDE_DIR, NCCL_LIBRARY.
#
# Machines often have several NCCLs, and a header of one with the library of another fails at run
# time only: structures such as ncclConfig_t grow between versions. So the library is asked for its
# version, and a pair that differs is refused.

set(_NCCL_hints ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_TARGET_DIR} ${CUDAToolkit_INCLUDE_DIRS}
                ${CUDAToolkit_LIBRARY_DIR})
set(_NCCL_parents "")
foreach(_NCCL_hint IN LISTS _NCCL_hints)
  get_filename_component(_NCCL_parent "${_NCCL_hint}" DIRECTORY)
  list(APPEND _NCCL_parents "${_NCCL_parent}")
endforeach()
list(APPEND _NCCL_hints ${_NCCL_parents})

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${_NCCL_hints} PATH_SUFFIXES include)
# The header's own prefix comes first: that is where its library is.
if(NCCL_INCLUDE_DIR)
  get_filename_component(_NCCL_header "${NCCL_INCLUDE_DIR}/nccl.h" REALPATH)
  get_filename_component(_NCCL_prefix "${_NCCL_header}" DIRECTORY)
  get_filename_component(_NCCL_prefix "${_NCCL_prefix}" DIRECTORY)
endif()
# A wheel has no libnccl.so, only libnccl.so.2.
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${_NCCL_prefix} ${_NCCL_hints}
             PATH_SUFFIXES lib lib64 lib/x86_64-linux-gnu)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

set(NCCL_VERSION "")
if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" _NCCL_defines
       REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  foreach(_NCCL_part MAJOR MINOR PATCH)
    string(REGEX MATCH "NCCL_${_NCCL_part} +([0-9]+)" _NCCL_match "${_NCCL_defines}")
    set(_NCCL_${_NCCL_part} "${CMAKE_MATCH_1}")
  endforeach()
  set(NCCL_VERSION "${_NCCL_MAJOR}.${_NCCL_MINOR}.${_NCCL_PATCH}")
endif()

# What the library says of itself; the real file's name where it cannot be run.
function(_NCCL_ask_library result)
  if(NOT CMAKE_CROSSCOMPILING)
    set(source "${CMAKE_BINARY_DIR}/CMakeFiles/nccl_version.cpp")
    file(WRITE "${source}" "#include <cstdio>
extern \"C\" int ncclGetVersion(int* version);
int main() {
  int code = 0;
  if (ncclGetVersion(&code) != 0) return 1;
  std::printf(\"%d.%d.%d\", code / 10000, code / 100 % 100, code % 100);
}
")
    try_run(ran compiled "${CMAKE_BINARY_DIR}/CMakeFiles/nccl_version" "${source}"
            LINK_LIBRARIES "${NCCL_LIBRARY}" RUN_OUTPUT_VARIABLE said)
    if(compiled AND ran STREQUAL "0")
      set(${result} "${said}" PARENT_SCOPE)
      return()
    endif()
  endif()
  get_filename_component(file "${NCCL_LIBRARY}" REALPATH)
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+$" version "${file}")
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

set(_NCCL_trouble "")
if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
  if(NOT _NCCL_CHECKED STREQUAL "${_NCCL_header} ${NCCL_LIBRARY} ${NCCL_VERSION}")
    _NCCL_ask_library(_NCCL_library_version)
    get_filename_component(_NCCL_real "${NCCL_LIBRARY}" REALPATH)
    string(FIND "${_NCCL_real}" "${_NCCL_prefix}/" _NCCL_same_prefix)
    if(_NCCL_library_version AND NOT _NCCL_library_version VERSION_EQUAL NCCL_VERSION)
      set(_NCCL_trouble "${_NCCL_header} is version ${NCCL_VERSION}, ${_NCCL_real} is \
${_NCCL_library_version}: set NCCL_ROOT to one installation")
    elseif(NOT _NCCL_library_version AND NOT _NCCL_same_prefix EQUAL 0)
      set(_NCCL_trouble "${_NCCL_header} and ${_NCCL_real} lie in different places, and the \
library's version is unknown: set NCCL_ROOT to one installation")
    else()
      set(_NCCL_CHECKED "${_NCCL_header} ${NCCL_LIBRARY} ${NCCL_VERSION}" CACHE INTERNAL "")
    endif()
  endif()
endif()
if(_NCCL_trouble)
  set(_NCCL_fits FALSE)
else()
  set(_NCCL_fits TRUE)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR _NCCL_fits VERSION_VAR NCCL_VERSION
  REASON_FAILURE_MESSAGE "${_NCCL_trouble}")

if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}"
                                              INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
  # nccl.h includes cuda_runtime.h.
  if(TARGET CUDA::cudart)
    set_property(TARGET NCCL::NCCL PROPERTY INTERFACE_LINK_LIBRARIES CUDA::cudart)
  endif()
endif()
