# GPU kernels: compiled by nvcc when it is there. nvcc is called by name, because CUDA as a language of the project would
# make every configuration depend on it. mpfa_cuda_kernels is an archive of the kernels and their launch code.
option(MPFA_CUDA "Build the GPU kernels when nvcc is found" ON)
set(MPFA_HAVE_CUDA OFF)
find_program(MPFA_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda/bin)
# Why there are no GPU kernels: what the library answers when it is asked for one.
macro(mpfa_without_cuda reason)
  set(MPFA_WITHOUT_CUDA "${reason}")
  message(STATUS "GPU kernels are not built: ${reason}")
  return()
endmacro()
if(NOT MPFA_CUDA)
  mpfa_without_cuda("the option MPFA_CUDA was off")
elseif(MPFA_SANITIZE)
  mpfa_without_cuda("the build has sanitizers")
elseif(NOT MPFA_NVCC)
  mpfa_without_cuda("nvcc was not found")
endif()
execute_process(COMMAND ${MPFA_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" version "${version}")
set(MPFA_CUDA_VERSION "${CMAKE_MATCH_1}")
if("${MPFA_CUDA_VERSION}" VERSION_LESS 13.0)
  mpfa_without_cuda("nvcc was of CUDA ${MPFA_CUDA_VERSION}, 13.0 is needed")
endif()
file(REAL_PATH ${MPFA_NVCC} nvcc)
get_filename_component(cuda_root ${nvcc} DIRECTORY)
get_filename_component(cuda_root ${cuda_root} DIRECTORY)
set(cuda_roots ${cuda_root} ENV CUDA_PATH ENV CUDA_HOME /usr/local/cuda)
find_library(MPFA_CUDART cudart_static HINTS ${cuda_roots} PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib)
find_path(MPFA_CUDA_INCLUDE cuda_runtime_api.h HINTS ${cuda_roots} PATH_SUFFIXES include)
if(NOT MPFA_CUDART OR NOT MPFA_CUDA_INCLUDE)
  mpfa_without_cuda("cudart_static or the headers of nvcc were not found")
endif()

function(mpfa_cuda_kernels target)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/sm90/*.cu)
  list(APPEND sources ${PROJECT_SOURCE_DIR}/src/cuda/sm90/decode/plan.cpp)
  set(objects)
  foreach(source ${sources})
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR}/src ${source})
    string(REPLACE "/" "_" name ${name})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${MPFA_NVCC} -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a --compress-mode=size -Xcompiler=-fPIC
              -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src -MD -MF ${object}.d -c -o ${object} ${source}
      DEPENDS ${source}
      DEPFILE ${object}.d
      COMMENT "nvcc ${name}")
    list(APPEND objects ${object})
  endforeach()
  set(archive ${CMAKE_CURRENT_BINARY_DIR}/lib${target}.a)
  add_custom_command(OUTPUT ${archive} COMMAND ${CMAKE_COMMAND} -E rm -f ${archive}
                     COMMAND ${CMAKE_AR} qc ${archive} ${objects} DEPENDS ${objects})
  add_custom_target(${target}_archive DEPENDS ${archive})
  add_library(${target} STATIC IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${archive}
                        INTERFACE_INCLUDE_DIRECTORIES ${MPFA_CUDA_INCLUDE}
                        INTERFACE_LINK_LIBRARIES "${MPFA_CUDART};${CMAKE_DL_LIBS};rt;Threads::Threads")
  add_dependencies(${target} ${target}_archive)
endfunction()
set(MPFA_HAVE_CUDA ON)
