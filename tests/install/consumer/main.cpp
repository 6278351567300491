#include <mpfa/mpfa.hpp>

int main() {
  return mpfa::parse_recipe("mxfp4").ok() && !mpfa::parse_recipe("no such recipe").ok() ? 0 : 1;
}
