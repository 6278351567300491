# Installs a build into an empty folder, builds the consumer project against it and runs its programs.
# Arguments: BUILD (build folder), WORK (scratch folder), CONSUMER (source folder), VERSION, BUILD_TYPE.
function(step)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "failed (${code}): ${command}\n${text}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
step(${CMAKE_COMMAND} --install ${BUILD} --component core --prefix ${WORK}/prefix)
step(${CMAKE_COMMAND} -G Ninja -S ${CONSUMER} -B ${WORK}/build -DCMAKE_PREFIX_PATH=${WORK}/prefix
     -DMPFA_VERSION=${VERSION} -DCMAKE_BUILD_TYPE=${BUILD_TYPE})
step(${CMAKE_COMMAND} --build ${WORK}/build)
step(${WORK}/build/consumer_cpp)
step(${WORK}/build/consumer_c)
