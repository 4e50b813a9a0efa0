// Staging copies of a state, independent of later changes to it.
#include <cairn/tests/support/skipped.hpp>
#include <cairn/tests/support/torch.hpp>
//
#ifdef CAIRN_HAS_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include <cairn/state/device_copies.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/staging.hpp>
#include <cairn/state/staging_pool.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {
namespace {

StagingOptions kept() {
  StagingOptions options;
  options.cache_staged_state_dict = true;
  return options;
}

StateDict staged(AsyncStager& stager, const StateDict& state) { return stager.begin(state)->finish(); }

bool share_storage(const torch::Tensor& a, const torch::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

TEST_CASE("a staged state is what the state was, whatever becomes of that") {
  DefaultStager stager;
  const torch::Tensor weight = counting({3, 4});
  const c10::List<std::int64_t> numbers({1, 2, 3});
  StateDict state{{"model", Dict{{"weight", weight}, {"scalar", torch::tensor(7)}, {"none", torch::empty({0, 5}, torch::kInt32)}}},
                  {"list", List{Value(counting({2}, 5, torch::kBool)), Value("text")}},
                  {"numbers", c10::IValue(numbers)},
                  {"own", per_rank(Value(counting({2})))},
                  {"sharded", ShardedTensor::distribute(counting({20, 20}), over_all_ranks(4), 2)},
                  {"blob", Blob{Bytes(3, 'x')}}};
  const StateDict copy = staged(stager, state);
  weight.fill_(-1);
  numbers.set(0, 99);
  state.at("sharded").sharded().local_shards().front().tensor.zero_();
  state.at("own").tensor().zero_();

  CHECK(torch::equal(copy.at("model")["weight"].tensor(), counting({3, 4})));
  CHECK(copy.at("model")["scalar"].tensor().item<std::int64_t>() == 7);
  CHECK(copy.at("model")["none"].tensor().sizes() == torch::IntArrayRef({0, 5}));
  CHECK((copy.at("model")["none"].tensor().scalar_type() == torch::kInt32));
  CHECK(torch::equal(copy.at("list").list()[0].tensor(), counting({2}, 5, torch::kBool)));
  CHECK(copy.at("list").list()[1].to_text() == "text");
  CHECK(copy.at("numbers").ivalue() == c10::IValue(c10::List<std::int64_t>({1, 2, 3})));
  CHECK(torch::equal(copy.at("own").tensor(), counting({2})));
  CHECK(copy.at("own").is_per_rank());
  CHECK_FALSE(copy.at("blob").is_per_rank());
  CHECK(copy.at("blob").blob() == Blob{Bytes(3, 'x')});
  const ShardedTensor& sharded = copy.at("sharded").sharded();
  CHECK(torch::equal(sharded.local_shards().front().tensor, counting({20, 20}).narrow(0, 10, 5)));
  CHECK(sharded.local_shards().front().offsets == Extents{10, 0});
  CHECK(sharded.all_chunks() == state.at("sharded").sharded().all_chunks());
}

TEST_CASE("memory that tensors share, strides and types are kept in the copy") {
  DefaultStager stager;
  const torch::Tensor base = counting({6, 4});
  torch::Tensor leaf = counting({2});
  leaf.requires_grad_();
  const torch::Tensor sparse_rows = counting({100, 4}).select(1, 2);  // one element in four
  const torch::Tensor wide = counting({1000});
  const StateDict copy = staged(stager, {{"whole", base},
                                         {"rows", base.narrow(0, 2, 2)},
                                         {"transposed", base.t()},
                                         {"bits", base.view(torch::kInt32)},
                                         {"expanded", counting({1, 3}).expand({5, 3})},
                                         {"leaf", leaf},
                                         {"column", sparse_rows},
                                         {"first", wide.narrow(0, 0, 10)},
                                         {"last", wide.narrow(0, 990, 10)}});
  const auto at = [&](const char* name) { return copy.at(name).tensor(); };
  for (const char* name : {"rows", "transposed", "bits"}) CHECK(share_storage(at("whole"), at(name)));
  CHECK_FALSE(share_storage(at("whole"), base));
  CHECK_FALSE(share_storage(at("whole"), at("leaf")));
  at("whole").zero_();
  CHECK(at("rows").sum().item<float>() == 0);
  CHECK(at("transposed").strides() == base.t().strides());
  CHECK(at("expanded").strides() == torch::IntArrayRef({0, 1}));
  CHECK(torch::equal(at("expanded"), counting({1, 3}).expand({5, 3})));
  CHECK(torch::equal(at("column"), sparse_rows));
  CHECK(at("leaf").requires_grad());
  CHECK_FALSE(at("whole").requires_grad());
  // Distant views of one storage are copied without the elements between them.
  CHECK(torch::equal(at("first"), wide.narrow(0, 0, 10)));
  CHECK(torch::equal(at("last"), wide.narrow(0, 990, 10)));
  CHECK_FALSE(share_storage(at("first"), at("last")));
  CHECK(stager.bytes_held() < 4000);
}

TEST_CASE("staging resolves conjugated and negated views, and passes on sparse tensors") {
  DefaultStager stager;
  const torch::Tensor complex = torch::complex(counting({3}), counting({3}, 5));
  const torch::Tensor sparse = counting({2, 2}).to_sparse();
  const torch::Tensor negated = torch::imag(complex.conj());
  REQUIRE(negated.is_neg());
  const StateDict copy = staged(stager, {{"conjugated", complex.conj()},
                                         {"negated", negated},
                                         {"negated conjugate", complex.conj()._neg_view()},
                                         {"sparse", sparse},
                                         {"undefined", torch::Tensor()}});
  CHECK(torch::equal(copy.at("conjugated").tensor(), torch::complex(counting({3}), -counting({3}, 5))));
  CHECK(torch::equal(copy.at("negated").tensor(), -counting({3}, 5)));
  CHECK(torch::equal(copy.at("negated conjugate").tensor(), torch::complex(-counting({3}), counting({3}, 5))));
  CHECK(copy.at("sparse").tensor().is_sparse());
  CHECK_FALSE(copy.at("undefined").tensor().defined());
}

TEST_CASE("memory is kept between saves while names, shapes and dtypes agree") {
  int remade = 0;
  DefaultStager stager(kept(), [&](std::string_view what) { remade += what == "staging memory is made anew"; });
  const auto address_of_copy = [&](const StateDict& state) { return staged(stager, state).at("weight").tensor().data_ptr(); };
  const void* const first = address_of_copy({{"weight", counting({100})}});
  const auto held = stager.bytes_held();
  CHECK(held >= 400);
  CHECK(address_of_copy({{"weight", counting({100}, 7)}}) == first);
  CHECK(stager.bytes_held() == held);
  CHECK(remade == 0);
  SUBCASE("another shape") {
    address_of_copy({{"weight", counting({50})}});
    CHECK(remade == 1);
    CHECK(stager.bytes_held() < held);
  }
  SUBCASE("another dtype") {
    address_of_copy({{"weight", counting({100}, 0, torch::kInt32)}});
    CHECK(remade == 1);
  }
  SUBCASE("another name") {
    staged(stager, {{"bias", counting({100})}});
    CHECK(remade == 1);
  }
  SUBCASE("two at a time have memory of their own") {
    const StateDict one = staged(stager, {{"weight", counting({100})}});
    const StateDict other = staged(stager, {{"weight", counting({100}, 7)}});
    CHECK(torch::equal(one.at("weight").tensor(), counting({100})));
    CHECK(stager.bytes_held() == 2 * held);
  }
  SUBCASE("given back when asked") {
    StateDict copy = staged(stager, {{"weight", counting({100})}});
    stager.release();
    CHECK(stager.bytes_held() == held);  // still in use
    CHECK(torch::equal(copy.at("weight").tensor(), counting({100})));
    copy = {};
    CHECK(stager.bytes_held() == 0);
  }
}

TEST_CASE("without a cache memory goes with the copy, with one it can be had ahead") {
  DefaultStager plain;
  {
    const StateDict copy = staged(plain, {{"weight", counting({100})}});
    CHECK(plain.bytes_held() > 0);
  }
  CHECK(plain.bytes_held() == 0);
  plain.prepare({{"weight", counting({100})}});
  CHECK(plain.bytes_held() == 0);

  DefaultStager caching(kept());
  caching.prepare({{"weight", counting({100})}});
  const auto held = caching.bytes_held();
  CHECK(held >= 400);
  staged(caching, {{"weight", counting({100})}});
  CHECK(caching.bytes_held() == held);
}

TEST_CASE("memory is bounded: what is kept goes first, then a state is refused") {
  StagingOptions options = kept();
  options.bytes_max = 1000;
  DefaultStager stager(options);
  StateDict in_use = staged(stager, {{"weight", counting({100})}});
  CHECK(thrown_by([&] {
          staged(stager, {{"weight", counting({200})}});
        }) == Saying{ErrorCode::kPrecondition, "StagingOptions::bytes_max"});
  CHECK(torch::equal(in_use.at("weight").tensor(), counting({100})));
  in_use = {};
  CHECK(torch::equal(staged(stager, {{"weight", counting({200})}}).at("weight").tensor(), counting({200})));
}

TEST_CASE("if page-locked memory is not available, plain memory is used and kept") {
  if (torch::cuda::is_available()) return skip_case("there is page-locked memory");
  const auto pool = std::make_shared<StagingPool>(0, true);
  const char* where = nullptr;
  for (const Locking locking : {Locking::kLater, Locking::kLater, Locking::kNow}) {
    const auto memory = pool->take(1000, locking);
    CHECK_FALSE(memory->is_locked());
    if (where) CHECK(memory->data() == where);
    where = memory->data();
    CHECK(pool->bytes_held() == 1000);
  }
}

TEST_CASE("memory that nobody has is an error that says how much") {
  const auto pool = std::make_shared<StagingPool>(0, true);
  for (const Locking locking : {Locking::kNever, Locking::kNow, Locking::kLater}) {
    CHECK(thrown_by([&] { pool->take(std::uint64_t{1} << 60, locking); }) ==
          Saying{ErrorCode::kUnavailable, "cannot get 1152921504606846976 bytes of host memory to stage a state"});
    CHECK(pool->bytes_held() == 0);
  }
}

TEST_CASE("a tensor that is resized while it is staged is reported by name") {
  for (const std::int64_t size : {2, 4000}) {
    CAPTURE(size);
    DefaultStager stager;
    torch::Tensor moment = counting({100});
    const auto staging = stager.begin({{"optimizer", Dict{{"moment", moment}}}});
    moment.resize_({size});
    moment.storage().unsafeGetStorageImpl()->set_nbytes(static_cast<std::size_t>(size) * sizeof(float));
    CHECK(thrown_by([&] { staging->finish(); }) ==
          Saying{ErrorCode::kPrecondition, "\"optimizer.moment\" was resized while it was being staged"});
  }
}

bool has_gpu() {
  if (!torch::cuda::is_available()) skip_case("there is no CUDA device");
  return torch::cuda::is_available();
}

TEST_CASE("GPU: tensors are copied into page-locked memory after earlier work") {
  if (!has_gpu()) return;
  DefaultStager stager(kept());
  for (int round = 0; round < 2; ++round) {
    const torch::Tensor host = counting({3});
    const torch::Tensor device = torch::zeros({1 << 24}, torch::kCUDA);
    for (int i = 0; i < 100; ++i) device.add_(1);
    StateDict state{{"whole", device}, {"every_other", device.slice(0, 0, 1 << 24, 2)}, {"host", host}};
    if (round == 1) stager.prepare(state);  // the first round copies into plain memory, and keeps it
    const auto staging = stager.begin(state);
    const StateDict copy = staging->finish();
    device.zero_();
    const torch::Tensor whole = copy.at("whole").tensor();
    CHECK(whole.is_cpu());
    if (round == 1) CHECK(whole.is_pinned());
    CHECK(torch::equal(whole, torch::full({1 << 24}, 100.0f)));
    CHECK(share_storage(whole, copy.at("every_other").tensor()));
    CHECK(torch::equal(copy.at("host").tensor(), host));
    CHECK(stager.bytes_held() < (1u << 26) + 1000);
  }
}

TEST_CASE("GPU: without use_pinned_memory tensors are copied into plain memory") {
  if (!has_gpu()) return;
  const StateDict state{{"whole", torch::arange(1 << 20, torch::kFloat).to(torch::kCUDA)}};
  for (const bool pinned : {false, true}) {
    CAPTURE(pinned);
    StagingOptions options = kept();
    options.use_pinned_memory = pinned;
    DefaultStager stager(options);
    stager.prepare(state);
    for (int round = 0; round < 2; ++round) {
      const torch::Tensor copy = stager.begin(state)->finish().at("whole").tensor();
      CHECK(copy.is_cpu());
      CHECK(copy.is_pinned() == pinned);
      CHECK(torch::equal(copy, torch::arange(1 << 20, torch::kFloat)));
    }
  }
}

TEST_CASE("GPU: many small tensors of every length come over whole, between large ones") {
  if (!has_gpu()) return;
  DefaultStager stager(kept());
  StateDict state;
  std::vector<torch::Tensor> expected;
  for (std::int64_t i = 0; i < 300; ++i) {
    const std::int64_t length = i % 100 == 7 ? std::int64_t{5} << 20 : 1 + 37 * i * i % 70000;
    expected.push_back(torch::arange(length).remainder(251).add(i % 5).to(torch::kUInt8));
    state.insert(std::to_string(i), expected.back().to(torch::kCUDA));
  }
  for (int round = 0; round < 2; ++round) {
    const StateDict copy = stager.begin(state)->finish();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CHECK(torch::equal(copy.at(std::to_string(i)).tensor(), expected[i]));
    }
  }
}

#ifdef CAIRN_HAS_CUDA
TEST_CASE("GPU: the copy waits for each device's current stream, default or not") {
  if (!has_gpu()) return;
  DefaultStager stager;
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  const torch::Tensor device = torch::zeros({1 << 24}, torch::kCUDA);
  for (int i = 0; i < 100; ++i) device.add_(1);
  const auto staging = stager.begin({{"whole", device}});
  CHECK(torch::equal(staging->finish().at("whole").tensor(), torch::full({1 << 24}, 100.0f)));
}

TEST_CASE("GPU: a stream that is being captured into a graph is refused") {
  if (!has_gpu()) return;
  DefaultStager stager;
  const torch::Tensor device = torch::zeros({100}, torch::kCUDA);
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  device.add_(1);
  const auto refused = thrown_by([&] { stager.begin({{"whole", device}}); });
  graph.capture_end();
  CHECK(refused == Saying{ErrorCode::kPrecondition, "is being captured into a graph"});
  CHECK_NOTHROW(stager.begin({{"whole", device}})->finish());
}
TEST_CASE("GPU: the hash of a device's tensor is that of its copy on the host, after earlier work") {
  if (!has_gpu()) return;
  SavePlannerOptions options;
  options.hash_tensors = true;
  const torch::Tensor host = torch::full({5, 1 << 20}, 100.0f) + counting({5, 1});
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  const torch::Tensor device = counting({5, 1}).to(torch::kCUDA).expand({5, 1 << 20}).contiguous();
  for (int i = 0; i < 100; ++i) device.add_(1);
  DefaultSavePlanner planner(options);
  planner.set_up_planner({{"host", host}, {"device", device}, {"host.t", host.t()}, {"device.t", device.t()}}, 0, true);
  const SavePlan plan = planner.create_local_plan();
  CHECK(plan.items.at(0).content_hash == plan.items.at(1).content_hash);
  CHECK(plan.items.at(2).content_hash == plan.items.at(3).content_hash);
  CHECK(plan.items.at(0).content_hash != plan.items.at(2).content_hash);
}

#endif

}  // namespace
}  // namespace cairn::testing
