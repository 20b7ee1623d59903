#pragma once

#pragma GCC visibility push(default)
namespace kolo {

/// A base class of optimizers, or of their options, that says what an update of an element depends
/// on. A sharded optimizer cuts parameters into flat pieces if it depends on nothing but that
/// element's value, gradient and state, as with Adam; otherwise one rank owns each parameter and
/// steps it whole, as with Muon, LAMB or Shampoo.
///
/// What options say holds for the groups that have them, and before what the optimizer says. Of
/// other classes than LibTorch's that say nothing, DistributedOptimizer steps a small probe, whole
/// and in pieces, when a sharded mode wraps them: step() is then called a few times with other
/// parameters in param_groups(), of a few elements; their state and changes of options are undone
/// afterwards. A class that counts calls of step() in its members, or behaves otherwise with larger
/// tensors, should say what it needs.
class TensorNeeds {
 public:
  virtual ~TensorNeeds() = default;
  virtual bool needs_whole_tensors() const = 0;

 protected:
  TensorNeeds() = default;
  TensorNeeds(const TensorNeeds&) = default;
  TensorNeeds& operator=(const TensorNeeds&) = default;
};

/// `class Lamb : public torch::optim::Optimizer, public kolo::WholeTensors`
class WholeTensors : public TensorNeeds {
 public:
  bool needs_whole_tensors() const override { return true; }
};

/// Pieces of a parameter may be stepped like parameters.
class Elementwise : public TensorNeeds {
 public:
  bool needs_whole_tensors() const override { return false; }
};

}  // namespace kolo
#pragma GCC visibility pop
