#include "train/tensors/activation_checkpoint.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "kolo/error.hpp"
#include "kolo/torch/activation_checkpoint.hpp"
#include "train/tensors/graph_node.hpp"

namespace kolo::train {
namespace {

namespace autograd = torch::autograd;
using autograd::Edge;
using autograd::Node;
using Tensors = std::vector<at::Tensor>;

/// The node at which the graph of a function's call ends. It captures gradients and never runs.
class Boundary final : public Node {
 public:
  std::string name() const override { return "KoloCheckpointBoundary"; }

  /// Adds an input of the boundary for each of `inputs`; returns the function's arguments.
  Tensors enter(const Tensors& inputs) {
    Tensors entered;
    for (const at::Tensor& input : inputs) {
      if (!input.defined() || !input.requires_grad()) {
        add_input_metadata(undefined_input());
        entered.push_back(input);
      } else {
        entered.push_back(input.detach());
        autograd::set_history(entered.back(), getptr());
      }
    }
    return entered;
  }
  /// Adds an input for the gradients that `edge` takes.
  Edge stand_in(const Edge& edge) {
    return {getptr(), add_input_like(edge.function->input_metadata(edge.input_nr))};
  }

 private:
  /// Newer versions of LibTorch have a separate dtype for gradients.
  template <class Metadata>
  std::uint32_t add_input_like(const Metadata& taken) {
    if constexpr (requires { taken.grad_dtype(); }) {
      return add_input_metadata(taken.options(), taken.shape_as_dim_vector(),
                                taken.is_tensor_subclass(), taken.is_nested_tensor(),
                                taken.grad_dtype());
    } else {
      return add_input_metadata(taken.options(), taken.shape_as_dim_vector(),
                                taken.is_tensor_subclass(), taken.is_nested_tensor());
    }
  }
  autograd::variable_list apply(autograd::variable_list&&) override { return {}; }
};

/// The graph of a function's call: the nodes that this thread has made since construction.
class Graph {
 public:
  explicit Graph(const Tensors& inputs)
      : boundary_(make_node<Boundary>()),
        entered_(boundary_->enter(inputs)),
        thread_(at::RecordFunction::currentThreadId()),
        first_(at::sequence_number::peek()) {}

  const Tensors& entered() const { return entered_; }
  Boundary& boundary() { return *boundary_; }

  /// Calls `visit` with every edge that leaves the graph, except those to its inputs. `visit` may
  /// change the edge.
  template <class Visit>
  void visit_ends(std::vector<Edge>& roots, const Visit& visit) const {
    std::vector<Node*> next;
    std::unordered_set<const Node*> seen;
    const auto follow = [&](Edge& edge) {
      if (!edge.is_valid() || edge.function == boundary_) return;
      if (!is_inside(*edge.function)) {
        visit(edge);
      } else if (seen.insert(edge.function.get()).second) {
        next.push_back(edge.function.get());
      }
    };
    for (Edge& root : roots) follow(root);
    while (!next.empty()) {
      Node* const node = next.back();
      next.pop_back();
      for (Edge& edge : node->next_edges()) follow(edge);
    }
  }

 private:
  bool is_inside(const Node& node) const {
    if (dynamic_cast<const autograd::AccumulateGrad*>(&node) != nullptr) return false;
    return node.thread_id() == thread_ && node.sequence_nr() >= first_;
  }

  decltype(make_node<Boundary>()) boundary_;
  Tensors entered_;
  std::uint64_t thread_;
  std::uint64_t first_;
};

std::vector<Edge> gradient_edges(const Tensors& tensors) {
  std::vector<Edge> edges;
  for (const at::Tensor& tensor : tensors) {
    const bool has_gradient = tensor.defined() && tensor.requires_grad();
    edges.push_back(has_gradient ? autograd::impl::gradient_edge(tensor) : Edge());
  }
  return edges;
}

[[noreturn]] void refuse(const std::string& problem) {
  throw InvalidArgument("checkpoint: " + problem);
}

/// The arguments and state of a function's call.
struct RecordedCall {
  RecordedCall(TensorFunction its_function, const Tensors& tensors)
      : function(std::make_shared<TensorFunction>(std::move(its_function))), random(tensors) {
    for (const at::Tensor& tensor : tensors) inputs.emplace_back(tensor, /*is_output=*/false);
  }

  std::shared_ptr<TensorFunction> function;
  std::vector<autograd::SavedVariable> inputs;
  RandomNumbers random;
  AutocastState autocast;
};

/// The node of a call in the program's graph. Its edges lead to the inputs, and to the other ends
/// of the function's graph, such as parameters: LibTorch then adds up all gradients of a parameter
/// before it accumulates them. A backward() within backward() would accumulate them each time.
class CheckpointBackward final : public Node {
 public:
  /// `ends`: edges that led out of the function's graph. `results`: which need gradients.
  CheckpointBackward(RecordedCall call, const std::vector<Edge>& input_edges,
                     std::vector<Edge> ends, std::vector<bool> results)
      : call_(std::move(call)), ends_(std::move(ends)), results_(std::move(results)) {
    for (const Edge& edge : input_edges) add_next_edge(edge);
    for (const Edge& edge : ends_) add_next_edge(edge);
  }

  std::string name() const override { return "KoloCheckpointBackward"; }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (autograd::SavedVariable& input : call_.inputs) input.reset_data();
    call_.function = nullptr;
  }

 private:
  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    if (at::GradMode::is_enabled()) {
      refuse("gradients of gradients (create_graph = true) cannot pass through it.");
    }
    Tensors inputs;
    std::shared_ptr<TensorFunction> function;
    {
      const std::lock_guard lock(mutex_);  // another backward() may release them
      TORCH_CHECK(call_.function != nullptr, autograd::ERR_BACKWARD_TWICE);
      for (const autograd::SavedVariable& input : call_.inputs) inputs.push_back(input.unpack());
      function = call_.function;
    }
    Graph graph(inputs);
    std::vector<Edge> roots = recompute(*function, graph);
    move_ends(graph, roots);
    return captured(graph, std::move(roots), std::move(gradients));
  }

  /// @return the edges of the results that need gradients
  std::vector<Edge> recompute(const TensorFunction& function, Graph& graph) const {
    const at::AutoGradMode with_graph(true);
    const RandomNumbersGuard programs_random_numbers(graph.entered());
    call_.random.restore();
    const std::vector<Edge> edges = gradient_edges(call_.autocast.call(function, graph.entered()));
    std::vector<bool> results;
    for (const Edge& edge : edges) results.push_back(edge.is_valid());
    if (results != results_) {
      refuse("the function returned other tensors in backward() than in the forward pass.");
    }
    std::vector<Edge> roots;
    std::copy_if(edges.begin(), edges.end(), std::back_inserter(roots),
                 [](const Edge& edge) { return edge.is_valid(); });
    return roots;
  }

  /// Redirects edges that leave the graph to the boundary, in the order of this node's edges.
  void move_ends(Graph& graph, std::vector<Edge>& roots) const {
    std::map<std::pair<const Node*, std::uint32_t>, Edge> stand_ins;
    for (const Edge& edge : ends_) {
      stand_ins[{edge.function.get(), edge.input_nr}] = graph.boundary().stand_in(edge);
    }
    graph.visit_ends(roots, [&](Edge& edge) {
      const auto known = stand_ins.find({edge.function.get(), edge.input_nr});
      if (known == stand_ins.end()) {
        refuse(
            "in backward() the function used a parameter or tensor that it had not used in the "
            "forward pass, so nothing takes its gradient. It must do the same both times.");
      }
      edge = known->second;
    });
  }

  autograd::variable_list captured(Graph& graph, std::vector<Edge> roots,
                                   autograd::variable_list gradients) const {
    autograd::edge_list begin;
    autograd::variable_list given;
    for (std::size_t i = 0; i < roots.size(); ++i) {
      if (!gradients[i].defined()) continue;
      begin.push_back(std::move(roots[i]));
      given.push_back(std::move(gradients[i]));
    }
    if (begin.empty()) return autograd::variable_list(num_outputs());
    autograd::edge_list ends;
    for (std::uint32_t i = 0; i < num_outputs(); ++i) {
      ends.emplace_back(graph.boundary().getptr(), i);
    }
    return autograd::Engine::get_default_engine().execute(begin, given, /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/false, ends);
  }

  RecordedCall call_;
  std::vector<Edge> ends_;  // this node's own edges are redirected by an enclosing checkpoint
  std::vector<bool> results_;
};

}  // namespace

std::vector<at::Tensor> checkpoint(TensorFunction function, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  RecordedCall call(std::move(function), inputs);
  Graph graph(inputs);
  Tensors results = call.autocast.call(*call.function, graph.entered());

  std::vector<Edge> roots = gradient_edges(results);
  std::vector<bool> needs_gradient;
  for (const Edge& root : roots) needs_gradient.push_back(root.is_valid());
  std::vector<Edge> ends;
  graph.visit_ends(roots, [&](const Edge& edge) {
    if (std::find(ends.begin(), ends.end(), edge) == ends.end()) ends.push_back(edge);
  });
  const auto node = make_node<CheckpointBackward>(std::move(call), gradient_edges(inputs),
                                                  std::move(ends), needs_gradient);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!needs_gradient[i]) continue;
    results[i] = results[i].detach();
    autograd::set_history(results[i], node);
  }
  return results;
}

}  // namespace kolo::train
