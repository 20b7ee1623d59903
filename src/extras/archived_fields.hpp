#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

namespace kolo::extras {

/// Visitors of the fields of options and of states, by name: they write them to an archive, without
/// undefined tensors, and read those that are there.
struct FieldWriter {
  torch::serialize::OutputArchive& archive;

  void operator()(const char* name, const at::Tensor& value) const {
    if (value.defined()) archive.write(name, c10::IValue(value));
  }
  template <class Value>
  void operator()(const char* name, const Value& value) const {
    archive.write(name, c10::IValue(value));
  }
};
struct FieldReader {
  torch::serialize::InputArchive& archive;

  template <class Value>
  void operator()(const char* name, Value& value) const {
    c10::IValue read;
    if (archive.try_read(name, read)) value = read.to<Value>();
  }
};

}  // namespace kolo::extras
