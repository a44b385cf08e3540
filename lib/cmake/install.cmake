# The installed package: find_package(ShardLoss COMPONENTS mpi nccl) gives shardloss::shardloss, and
# for the components asked for shardloss::mpi and shardloss::nccl.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/ShardLoss")
set(SHARDLOSS_HAVE_NCCL OFF)
set(SHARDLOSS_STATIC ON)
if(BUILD_SHARED_LIBS)
  set(SHARDLOSS_STATIC OFF)
endif()

# Each component has its own export file, so that a consumer without MPI never looks for it.
foreach(library IN ITEMS shardloss shardloss_mpi shardloss_nccl)
  if(TARGET ${library})
    set_target_properties(${library} PROPERTIES VERSION ${PROJECT_VERSION}
                                                SOVERSION ${PROJECT_VERSION_MAJOR})
    install(TARGETS ${library} EXPORT ${library}
            ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
            LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
    install(EXPORT ${library} NAMESPACE shardloss:: FILE ${library}-targets.cmake
            DESTINATION "${package_dir}")
  endif()
endforeach()
if(TARGET shardloss_nccl)
  set(SHARDLOSS_HAVE_NCCL ON)
endif()

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/shardloss" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/ShardLossConfig.cmake.in" "${PROJECT_BINARY_DIR}/ShardLossConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/ShardLossConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/ShardLossConfig.cmake"
              "${PROJECT_BINARY_DIR}/ShardLossConfigVersion.cmake" DESTINATION "${package_dir}")
if(SHARDLOSS_HAVE_NCCL)
  install(FILES "${PROJECT_SOURCE_DIR}/dist/cmake/FindNCCL.cmake" DESTINATION "${package_dir}")
endif()
