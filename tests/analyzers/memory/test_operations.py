"""Stacks that end in C++ are named by their operation."""

import pytest

from analyzers.memory.frames import operation_of

ENGINE = (
    "torch::autograd::Node::operator()(std::vector<at::Tensor>&&)",
    "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)",
    "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
    "clone",
)

CASES = {
    "backward of bmm": (
        "at::(anonymous namespace)::create_out(c10::ArrayRef<long>)",
        "at::_ops::bmm::call(at::Tensor const&, at::Tensor const&)",
        "torch::autograd::generated::BmmBackward0_apply_functional(std::vector<at::Tensor>&&)",
        "torch::autograd::generated::BmmBackward0::apply(std::vector<at::Tensor>&&)",
        *ENGINE,
    ),
    "backward of softmax": (
        "at::_ops::_softmax_backward_data::call(at::Tensor const&)",
        "torch::autograd::generated::SoftmaxBackward0::apply(std::vector<at::Tensor>&&)",
        *ENGINE,
    ),
    "backward of nll_loss": ("aten::nll_loss_backward", "NllLossBackward0",
                             "autograd::engine::evaluate_function: NllLossBackward0", "bwd"),
    "backward of layer_norm": (
        "at::_ops::native_layer_norm_backward::call(at::Tensor const&)",
        "torch::autograd::generated::NativeLayerNormBackward0::apply(std::vector<at::Tensor>&&)",
        *ENGINE,
    ),
    "backward of scaled_dot_product_attention": (
        "pytorch_flash::mha_bwd(at::Tensor const&)",
        "torch::autograd::generated::ScaledDotProductFlashAttentionBackward0::apply(std::vector<at::Tensor>&&)",
        *ENGINE,
    ),
    "backward of convolution": (
        "at::_ops::convolution_backward::call(at::Tensor const&)",
        "torch::autograd::generated::ConvolutionBackward0::apply(std::vector<at::Tensor>&&)",
        *ENGINE,
    ),
    "gradient of a parameter (AccumulateGrad)": (
        "at::_ops::new_empty_strided::call(at::Tensor const&)",
        "torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)",
        *ENGINE,
    ),
    "sum of gradients from several uses": (
        "at::_ops::add_Tensor::call(at::Tensor const&, at::Tensor const&, c10::Scalar const&)",
        "torch::autograd::InputBuffer::add(unsigned long, at::Tensor&&)",
        *ENGINE[1:],
    ),
    "backward of a custom autograd function": ("torch::autograd::PyNode::apply(std::vector<at::Tensor>&&)", *ENGINE),
    "cuBLAS workspace": (
        "at::cuda::getNewWorkspace()",
        "at::cuda::getCurrentCUDABlasHandle()",
        "at::_ops::bmm::call(at::Tensor const&, at::Tensor const&)",
    ),
    "NCCL collective": (
        "at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)",
        "c10d::ProcessGroupNCCL::allgather(std::vector<std::vector<at::Tensor>>&)",
    ),
    "gradient bucket of DistributedDataParallel": (
        "at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)",
        "c10d::Reducer::initialize_buckets(std::vector<std::vector<unsigned long>>&&)",
    ),
    "gloo all_gather": ("aten::empty", "gloo:all_gather"),
    "sum": ("at::_ops::sum_dim_IntList::call(at::Tensor const&)", "torch::autograd::THPVariable_sum(_object*)"),
    "linear": ("aten::mm", "aten::matmul", "aten::linear", "fwd"),
    "zeros": ("at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)", "at::_ops::zeros::call(int)"),
    "to": ("at::_ops::_to_copy::call(at::Tensor const&)", "at::_ops::to_dtype_layout::call(at::Tensor const&)"),
    "": ("clone", "pthread_create"),
}  # fmt: skip


@pytest.mark.parametrize("words", CASES)
def test_native_stack_is_named_by_what_it_does(words: str) -> None:
    assert operation_of(CASES[words]) == words
