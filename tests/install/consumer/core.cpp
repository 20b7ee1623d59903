#include <iostream>

#include <kolo/dtype.hpp>

int main() {
  std::cout << kolo::name_of(kolo::DType::BFloat16) << '\n';
  return kolo::name_of(kolo::DType::BFloat16) == "bfloat16" ? 0 : 1;
}
