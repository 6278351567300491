# Warnings, sanitizers and floating-point rules shared by every target.
add_library(mpfa_options INTERFACE)
target_compile_features(mpfa_options INTERFACE cxx_std_20)
target_compile_options(mpfa_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                                              -Wno-float-conversion
                                              # The same bytes and rows on every machine: no FMA the source does not ask for.
                                              -ffp-contract=off)
if(MPFA_WERROR)
  target_compile_options(mpfa_options INTERFACE -Werror)
endif()
if(MPFA_SANITIZE)
  target_compile_options(mpfa_options INTERFACE -fsanitize=${MPFA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(mpfa_options INTERFACE -fsanitize=${MPFA_SANITIZE})
endif()
if(MPFA_BUILD_FUZZ)
  target_compile_options(mpfa_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
