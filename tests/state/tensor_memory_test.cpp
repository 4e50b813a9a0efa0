#include <cairn/state/tensor_memory.hpp>

#include <tuple>

#include <torch/torch.h>

#include <cairn/tests/state/memory_checkpoint.hpp>
#include <cairn/tests/support/resized_storage.hpp>

using namespace cairn;
using namespace cairn::test;
using testing::with_storage_of;

namespace {

using Pair = std::tuple<std::size_t, std::size_t, bool>;  // first, second, is_same

std::vector<Pair> shared_in(const std::vector<torch::Tensor>& tensors) {
  std::vector<Pair> pairs;
  for (const SharedMemory& shared : find_shared_memory(tensors)) pairs.emplace_back(shared.first, shared.second, shared.is_same);
  return pairs;
}

}  // namespace

TEST_CASE("tensors that share memory are found, whatever their layout and type") {
  const torch::Tensor m = torch::zeros({6, 4});
  const torch::Tensor line = torch::zeros({60});
  const torch::Tensor complex = torch::zeros({6, 4}, at::kComplexFloat);
  std::vector<torch::Tensor> columns;
  for (std::int64_t i = 0; i < 100; ++i) columns.push_back(torch::zeros({3, 100}).select(1, i));
  const torch::Tensor wide = torch::zeros({50, 100});
  for (std::int64_t i = 0; i < 100; ++i) columns.push_back(wide.select(1, i));
  const auto at = [&](at::IntArrayRef sizes, at::IntArrayRef strides) { return line.as_strided(sizes, strides); };
  const struct {
    const char* what;
    std::vector<torch::Tensor> tensors;
    std::vector<Pair> expected;
  } cases[] = {
      {"separate", {torch::zeros({4}), torch::zeros({4})}, {}},
      {"the same tensor three times", {m, torch::zeros({4}), m, m}, {{0, 2, true}, {0, 3, true}}},
      {"slices", {line.slice(0, 0, 20), line.slice(0, 20, 60)}, {}},
      {"overlapping slices", {line.slice(0, 0, 21), line.slice(0, 20, 60)}, {{0, 1, false}}},
      {"listed in the other order", {line.slice(0, 20, 60), line.slice(0, 0, 21)}, {{0, 1, false}}},
      {"an element", {line, line[7]}, {{0, 1, false}}},
      {"one view in the other", {line.slice(0, 5, 9), torch::zeros({2}), line}, {{0, 2, false}}},
      {"the other storage of the same memory", {line, torch::from_blob(line.data_ptr(), {60})}, {{0, 1, true}}},
      {"interleaved elements", {line.slice(0, 0, 60, 2), line.slice(0, 1, 60, 2)}, {}},
      {"elements in other steps", {line.slice(0, 0, 60, 2), line.slice(0, 1, 60, 3)}, {{0, 1, false}}},
      {"steps that never meet", {line.slice(0, 0, 60, 4), line.slice(0, 1, 60, 6)}, {}},
      {"columns", {m.slice(1, 0, 4, 2), m.slice(1, 1, 4, 2)}, {}},
      {"blocks of columns", {m.slice(1, 0, 3), m.slice(1, 3, 4), m.slice(1, 1, 2).slice(0, 5, 6)}, {{0, 2, false}}},
      {"a column and some rows", {m.slice(1, 0, 2), m.select(1, 3).slice(0, 0, 6, 2), m.select(1, 1)[4]}, {{0, 2, false}}},
      {"many columns", columns, {}},
      {"diagonals", {m.diagonal(), m.diagonal(1), m.diagonal(-1)}, {}},
      {"a diagonal and a row", {m.diagonal(), m[2]}, {{0, 1, false}}},
      {"a transposed view", {m, m.t()}, {{0, 1, true}}},
      {"another shape", {m, m.view({24}), m.view({2, 3, 4}).permute({2, 0, 1})}, {{0, 1, true}, {0, 2, true}}},
      {"another type", {m, m.view(at::kInt), m.view(at::kByte)}, {{0, 1, true}, {0, 2, true}}},
      {"part of it as another type", {m, m.view(at::kByte).slice(1, 0, 1)}, {{0, 1, false}}},
      {"bytes of one element", {m.view(at::kByte).slice(1, 0, 16, 2), m.view(at::kByte).slice(1, 1, 16, 2)}, {}},
      {"complex as real", {complex, torch::view_as_real(complex)}, {{0, 1, true}}},
      {"real and imaginary parts", {torch::real(complex), torch::imag(complex)}, {}},
      {"a real part of a complex tensor", {complex, torch::imag(complex)}, {{0, 1, false}}},
      {"a conjugated view", {complex, complex.conj()}, {{0, 1, true}}},
      {"views without elements", {line.slice(0, 4, 4), line, torch::zeros({0}), torch::zeros({0, 3})}, {}},
      {"an expanded tensor", {torch::zeros({1}).expand({3})}, {{0, 0, false}}},
      {"windows", {line.unfold(0, 3, 2)}, {{0, 0, false}}},
      {"windows side by side", {line.unfold(0, 3, 4)}, {}},
      {"steps within steps", {at({2, 3}, {3, 2})}, {{0, 0, false}}},
      {"dimensions of size 1", {at({1, 60, 1}, {0, 1, 7}), line}, {{0, 1, true}}},
  };
  for (const auto& it : cases) {
    CAPTURE(it.what);
    CHECK((shared_in(it.tensors) == it.expected));
  }
}

TEST_CASE("a tensor whose storage is freed or too small has no memory") {
  const auto why = [](const torch::Tensor& tensor) { return why_without_memory(tensor); };
  CHECK(why(torch::zeros({4})) == "");
  CHECK(why(torch::zeros({})) == "");
  CHECK(why(with_storage_of(torch::zeros({0, 3}), 0)) == "");
  CHECK(has(why(with_storage_of(torch::zeros({}), 0)), "a storage of 0 bytes, but its elements need 4"));
  CHECK(has(why(with_storage_of(torch::zeros({25}), 96)), "a storage of 96 bytes, but its elements need 100"));
  const torch::Tensor all = torch::zeros({25}), most = all.narrow(0, 0, 24), steps = all.slice(0, 0, 25, 3), last = all[24];
  with_storage_of(all, 96);
  CHECK(why(most) == "");
  CHECK(why(steps) != "");
  CHECK(why(last) != "");
}
