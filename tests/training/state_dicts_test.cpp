#include <cairn/tests/support/torch.hpp>

#include <functional>
#include <map>
#include <tuple>

#include <cairn/formats/torch_archive.hpp>
#include <cairn/state/leaf_bytes.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/training/sharded_models.hpp>
#include <cairn/training/state_dicts.hpp>

using namespace cairn;
using namespace cairn::testing;
using training::fully_shard;
using training::Hooked;
using training::ProcessGroup;
using training::ProcessMesh;
using training::StateDictOptions;

namespace {

Hooked<Composite> composite(std::uint64_t seed = 0) {
  return seeded(seed, [] { return Hooked<Composite>(6); });
}

Hooked<Composite> sharded_composite(const ProcessGroup& group, std::uint64_t seed = 0) {
  auto model = composite(seed);
  fully_shard(*model->u1, ProcessMesh(group));
  fully_shard(model, ProcessMesh(group));
  return model;
}

// All bytes, in any order of keys.
std::map<std::string, Bytes> contents_of(const Dict& dict) {
  std::map<std::string, Bytes> contents;
  for (const auto& [name, value] : dict) contents.emplace(name, serialize_leaf(value));
  return contents;
}

template <class Optimizer, class Model>
Optimizer stepped(Model& model, const torch::Tensor& input) {
  Optimizer optimizer(model->parameters(), 0.01);
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    model(input).pow(2).mean().backward();
    optimizer.step();
  }
  return optimizer;
}

}  // namespace

TEST_CASE("state dicts: all faults of a refused call are reported at once") {
  on_ranks(2, [](const ProcessGroup& group) {
    auto model = sharded_composite(group);
    torch::optim::Adam optimizer(model->parameters());
    StateDictOptions lonely;
    lonely.broadcast_from_rank0 = true;
    CHECK(thrown_by([&] { training::get_model_state_dict(*model, lonely); }).code == ErrorCode::kInvalidArgument);
    StateDictOptions foreign;
    torch::nn::Linear stranger(1, 1);
    foreign.submodules = {stranger.get()};
    CHECK(thrown_by([&] { training::get_model_state_dict(*model, foreign); }).says("not one of the model's"));

    const torch::Tensor before = model->l1->parameters()[0].detach().clone();
    Dict wrong = training::get_model_state_dict(*model);
    wrong.erase("l1.bias");
    wrong["l1.weight"] = here(torch::ones({5, 6}));
    wrong["l2.weight"] = here(torch::ones({6, 6}));
    wrong.insert("more", here(torch::ones({1})));
    const Thrown thrown = thrown_by([&] { training::set_model_state_dict(*model, wrong); });
    CHECK(thrown == Saying{ErrorCode::kMismatch, "\"l1.bias\" is missing"});
    CHECK(thrown.says("\"l1.weight\" is a tensor of size [5, 6], the model has [" + std::to_string(3 * group.rank()) + ":"));
    CHECK(thrown.says("\"more\" is not in the model"));
    CHECK_FALSE(thrown.says("l2.weight"));
    CHECK(training::local_tensor(model->l2->parameters()[0]).count_nonzero().item<int>() > 0);
    CHECK_FALSE(model->l2->parameters()[0].equal(here(torch::ones({3, 6}))));  // nothing was changed
    CHECK(model->l1->parameters()[0].equal(before));

    auto late = composite();
    torch::optim::Adam early(late->parameters());
    fully_shard(late, ProcessMesh(group));
    CHECK(thrown_by([&] { training::get_optimizer_state_dict(*late, early); }).code == ErrorCode::kMismatch);
  });
}

TEST_CASE("state dicts: another rank's shard of equal size is refused without any change") {
  on_ranks(2, [](const ProcessGroup& group) {
    auto model = sharded_composite(group);
    const torch::Tensor before = model->l1->parameters()[0].detach().clone();
    Dict wrong = training::get_model_state_dict(*model);
    const std::int64_t others_row = 3 * (1 - group.rank());
    const std::string others_part = to_string(Box{{others_row, 0}, {3, 6}}) + " of a tensor of size [6, 6]";
    wrong["l1.weight"] = ShardedTensor({6, 6}, DType::kFloat32, {{here(torch::ones({3, 6})), {others_row, 0}}});
    CHECK(thrown_by([&] { training::set_model_state_dict(*model, wrong); }) ==
          Saying{ErrorCode::kMismatch, "\"l1.weight\" is " + others_part});
    CHECK(model->l1->parameters()[0].equal(before));

    torch::optim::Adam optimizer(model->parameters());
    Dict state = training::get_optimizer_state_dict(*model, optimizer);
    const auto local = state["state"]["l1.weight"]["exp_avg"].sharded().local_shards().front().tensor;
    state["state"]["l1.weight"]["exp_avg"] = wrong["l1.weight"];
    for (const bool nested : {true, false}) {
      const Thrown refused = thrown_by([&] {
        if (nested) return load_optimizer_state_dict(optimizer, state, &*model);
        training::set_optimizer_state_dict(*model, optimizer, state);
      });
      CHECK(refused == Saying{ErrorCode::kMismatch, "[\"exp_avg\"] is " + others_part});
      CHECK(local.count_nonzero().item<int>() == 0);
    }
  });
}

TEST_CASE("state dicts: an optimizer's dict that lacks parameters is refused by default") {
  on_ranks(2, [](const ProcessGroup& group) {
    const torch::Tensor input = seeded(1, [] { return torch::randn({2, 6}); });
    auto model = sharded_composite(group), other = sharded_composite(group, 5);
    auto optimizer = stepped<torch::optim::Adam>(model, input), into = stepped<torch::optim::Adam>(other, input);
    for (const bool flat : {false, true}) {
      CAPTURE(flat);
      StateDictOptions options;
      options.flatten_optimizer_state_dict = flat;
      Dict part = training::get_optimizer_state_dict(*model, optimizer, options);
      if (flat) {
        for (const char* field : {"step", "exp_avg", "exp_avg_sq"}) part.erase(std::string("state.l1.weight.") + field);
      } else {
        part.at("state").dict().erase("l1.weight");
      }
      const torch::Tensor before = training::get_optimizer_state_dict(*other, into)
                                       .at("state")["l1.weight"]["exp_avg"]
                                       .sharded()
                                       .local_shards()[0]
                                       .tensor.clone();
      CHECK(thrown_by([&] { training::set_optimizer_state_dict(*other, into, part, options); }) ==
            Saying{ErrorCode::kMismatch, "the state of \"l1.weight\" is missing"});
      options.strict = false;
      training::set_optimizer_state_dict(*other, into, part, options);
      const Dict found = training::get_optimizer_state_dict(*other, into),
                 all = training::get_optimizer_state_dict(*model, optimizer);
      const auto moments = [](const Dict& of, const std::string& name) {
        return of.at("state").dict().at(name).dict().at("exp_avg").sharded().local_shards()[0].tensor;
      };
      CHECK(moments(found, "l1.weight").equal(before));
      CHECK(moments(found, "l2.weight").equal(moments(all, "l2.weight")));
    }
    StateDictOptions flattened;
    flattened.flatten_optimizer_state_dict = true;
    Dict foreign = training::get_optimizer_state_dict(*model, optimizer, flattened);
    foreign.insert("state.head.weight.step", 3);
    CHECK(thrown_by([&] {
            training::set_optimizer_state_dict(*other, into, foreign, flattened);
          }).says("\"state.head.weight.step\" belongs to no"));
  });
}

TEST_CASE("state dicts: an optimizer gets state and options that it was made without") {
  on_ranks(2, [](const ProcessGroup& group) {
    const torch::Tensor input = seeded(1, [] { return torch::randn({2, 6}); });
    auto plain = composite();
    torch::optim::SGD momentum(plain->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    plain(input).pow(2).mean().backward();
    momentum.step();
    for (const bool flat : {false, true}) {
      for (const bool is_sent : {false, true}) {
        CAPTURE(flat);
        CAPTURE(is_sent);
        StateDictOptions options;
        options.full_state_dict = true;
        options.flatten_optimizer_state_dict = flat;
        Dict given = training::get_optimizer_state_dict(*plain, momentum, options);
        for (const auto& [name, parameter] : plain->named_parameters().pairs()) {
          if (flat) given["param_groups." + name + ".initial_lr"] = 0.3;
        }
        if (!flat) given["param_groups"].list()[0]["initial_lr"] = 0.3;
        auto model = sharded_composite(group);
        torch::optim::SGD into(model->parameters(), torch::optim::SGDOptions(0.5));
        options.broadcast_from_rank0 = is_sent;
        training::set_optimizer_state_dict(*model, into, is_sent && group.rank() > 0 ? Dict() : given, options);
        options.broadcast_from_rank0 = false;
        CHECK(contents_of(training::get_optimizer_state_dict(*model, into, options)) == contents_of(given));
        // Back: the buffers go with the momentum.
        torch::optim::SGD without(plain->parameters(), torch::optim::SGDOptions(0.25));
        const Dict stateless = training::get_optimizer_state_dict(*plain, without, options);
        training::set_optimizer_state_dict(*model, into, stateless, options);
        CHECK(contents_of(training::get_optimizer_state_dict(*model, into, options)) == contents_of(stateless));
      }
    }
  });
}

TEST_CASE("state dicts: an optimizer's dict that does not fit leaves the model as it was") {
  on_ranks(2, [](const ProcessGroup& group) {
    const torch::Tensor input = seeded(1, [] { return torch::randn({2, 6}); });
    auto plain = composite(9);
    auto plain_optimizer = stepped<torch::optim::Adam>(plain, input);
    for (const bool is_sent : {false, true}) {
      CAPTURE(is_sent);
      StateDictOptions options;
      options.full_state_dict = true;
      Dict of_model, of_optimizer;
      std::tie(of_model, of_optimizer) = training::get_state_dict(*plain, plain_optimizer, options);
      of_optimizer["param_groups"].list()[0]["maximize"] = true;
      auto model = sharded_composite(group);
      torch::optim::Adam optimizer(model->parameters(), 0.5);
      const auto before = training::get_state_dict(*model, optimizer, options);
      options.broadcast_from_rank0 = is_sent;
      const Thrown thrown = thrown_by([&] { training::set_state_dict(*model, optimizer, of_model, of_optimizer, options); });
      CHECK(thrown.says("maximizes"));
      options.broadcast_from_rank0 = false;
      const auto after = training::get_state_dict(*model, optimizer, options);
      CHECK(contents_of(after.first) == contents_of(before.first));
      CHECK(contents_of(after.second) == contents_of(before.second));
    }
  });
}

TEST_CASE("state dicts: faults of rank 0's dict are reported on all ranks, without effect") {
  on_ranks(2, [](const ProcessGroup& group) {
    auto model = sharded_composite(group);
    StateDictOptions options;
    options.full_state_dict = true;
    Dict whole = training::get_model_state_dict(*model, options);
    const torch::Tensor before = model->l2->parameters()[0].detach().clone();
    whole.erase("l1.bias");
    whole["l1.weight"] = here(torch::ones({5, 6}));
    whole["l2.weight"] = here(torch::ones({6, 6}));
    whole.insert("more", here(torch::ones({1})));
    options.broadcast_from_rank0 = true;
    const Dict given = group.rank() == 0 ? whole : Dict();
    const Thrown thrown = thrown_by([&] { training::set_model_state_dict(*model, given, options); });
    CHECK(thrown.code == ErrorCode::kMismatch);
    for (const char* what :
         {"\"l1.bias\" is missing on rank 0", "\"l1.weight\" is a tensor of size [5, 6] on rank 0", "\"more\" is not in"})
      CHECK(thrown.says(what));
    CHECK(model->l2->parameters()[0].equal(before));
    // With `strict` off, missing and unexpected entries are ignored. Wrong sizes are still errors.
    options.strict = false;
    whole["l1.weight"] = here(torch::ones({6, 6}));
    training::set_model_state_dict(*model, group.rank() == 0 ? whole : Dict(), options);
    CHECK(model->l2->parameters()[0].equal(here(torch::ones({3, 6}))));
  });
}

TEST_CASE_TEMPLATE("state dicts: optimizer state moves between sharded and plain optimizers", Optimizer, torch::optim::Adam,
                   torch::optim::AdamW, torch::optim::RMSprop, torch::optim::Adagrad, torch::optim::SGD) {
  on_ranks(2, [](const ProcessGroup& group) {
    const torch::Tensor input = seeded(1, [] { return torch::randn({2, 6}); });
    auto plain = composite(), model = sharded_composite(group), other = sharded_composite(group, 5);
    Optimizer plain_optimizer = stepped<Optimizer>(plain, input), optimizer = stepped<Optimizer>(model, input);

    for (const bool flat : {false, true}) {
      StateDictOptions whole;
      whole.full_state_dict = true;
      whole.flatten_optimizer_state_dict = flat;
      const auto [of_model, of_optimizer] = training::get_state_dict(*model, optimizer, whole);
      if (flat) CHECK(of_optimizer.at("param_groups.l1.weight.lr").to_double() == 0.01);
      // Loads into the plain optimizer, which has another learning rate.
      auto copy = composite(9);
      Optimizer into(copy->parameters(), 0.5);
      training::set_state_dict(*copy, into, of_model, of_optimizer, whole);
      for (const auto& [name, value] : training::get_model_state_dict(*plain))
        CHECK(value.tensor().equal(training::get_model_state_dict(*copy).at(name).tensor()));
      const Dict expected = training::get_optimizer_state_dict(*plain, plain_optimizer);
      const Dict found = training::get_optimizer_state_dict(*copy, into);
      CHECK(found.at("state").dict().size() == expected.at("state").dict().size());
      for (const auto& [name, fields] : expected.at("state").dict()) {
        for (const auto& [field, value] : fields.dict()) {
          if (value.is_tensor()) CHECK(value.tensor().equal(found.at("state")[name][field].tensor()));
        }
      }
      CHECK(found.at("param_groups").list()[0]["lr"].to_double() == 0.01);
      // Loads into another sharded model, which then trains like the first.
      Optimizer sharded_into(other->parameters(), 0.5);
      training::set_state_dict(*other, sharded_into, of_model, of_optimizer, whole);
      CHECK(largest_difference(whole_parameters(*other), whole_parameters(*plain)) == 0);
      other(input).pow(2).mean().backward();
      sharded_into.step();
    }
  });
}

TEST_CASE("state dicts: sharded by default, live, and selected by the options") {
  on_ranks(2, [](const ProcessGroup& group) {
    auto plain = composite(), model = sharded_composite(group);
    const Dict live = training::get_model_state_dict(*model);
    CHECK(live.size() == plain->parameters().size());
    CHECK(live.at("u1.seq.1.weight").sharded().local_shards()[0].tensor.is_same(model->named_parameters()["u1.seq.1.weight"]));

    StateDictOptions of_u1;
    of_u1.submodules = {model->u1.get()};
    CHECK(training::get_model_state_dict(*model, of_u1).size() == 6);
    CHECK(training::get_model_state_dict(*model, of_u1).contains("u1.l1.weight"));
    of_u1.keep_submodule_prefixes = false;
    CHECK(training::get_model_state_dict(*model, of_u1).contains("seq.1.bias"));

    StateDictOptions copies;
    copies.cpu_offload = true;
    const Dict copied = training::get_model_state_dict(*model, copies);
    CHECK_FALSE(copied.at("l1.weight").sharded().local_shards()[0].tensor.is_same(model->l1->parameters()[0]));
    CHECK(copied.at("l1.weight").sharded().local_shards()[0].tensor.equal(model->l1->parameters()[0].cpu()));
    copies.full_state_dict = true;
    CHECK(training::get_model_state_dict(*model, copies).size() == (group.rank() == 0 ? live.size() : 0));

    model->named_parameters()["l1.bias"].set_requires_grad(false);
    StateDictOptions trained;
    trained.ignore_frozen_params = true;
    CHECK_FALSE(training::get_model_state_dict(*model, trained).contains("l1.bias"));

    // With `strict` off, the entries that exist are loaded.
    StateDictOptions loose;
    loose.strict = false;
    training::set_model_state_dict(*model, {{"l1.bias", here(torch::full({6}, 3.0))}, {"unknown", here(torch::ones({1}))}}, loose);
    CHECK(model->named_parameters()["l1.bias"].equal(here(torch::full({3}, 3.0))));
  });
}

TEST_CASE("state dicts: all ranks refuse optimizer state of rank 0 that does not fit") {
  on_ranks(2, [](const ProcessGroup& group) {
    const torch::Tensor input = seeded(1, [] { return torch::randn({2, 6}); });
    auto model = sharded_composite(group);
    auto optimizer = stepped<torch::optim::Adam>(model, input);
    StateDictOptions options;
    options.full_state_dict = true;
    const Dict before = training::get_optimizer_state_dict(*model, optimizer, options);
    options.broadcast_from_rank0 = true;
    const auto thrown_for = [&](const std::function<void(Dict&)>& spoil) {
      Dict given;
      if (group.rank() == 0) {
        given = before;
        given["param_groups"].list()[0]["lr"] = 0.75;
        spoil(given);
      }
      return thrown_by([&] { training::set_optimizer_state_dict(*model, optimizer, given, options); });
    };
    const Thrown other_size = thrown_for([](Dict& given) {
      given["state"]["l1.weight"]["exp_avg"] = here(torch::ones({3, 6}));  // as large as one rank's part
      given["state"]["u1.l1.bias"]["exp_avg_sq"] = 1.5;
    });
    CHECK(other_size == Saying{ErrorCode::kMismatch, "state[\"l1.weight\"][\"exp_avg\"] is a tensor of size [3, 6] on rank 0"});
    CHECK(other_size.says("which has to have all of it: [6, 6]"));
    CHECK(other_size.says("state[\"u1.l1.bias\"][\"exp_avg_sq\"]"));
    const Thrown missing = thrown_for([](Dict& given) { given["state"].dict().erase("l2.bias"); });
    CHECK(missing == Saying{ErrorCode::kMismatch, "the state of \"l2.bias\" is missing"});
    const Thrown not_a_value = thrown_for(
        [](Dict& given) { given["param_groups"].list()[0]["more"] = cairn::stateful(std::make_shared<DataPosition>()); });
    CHECK(not_a_value.is_error);
    const Thrown opaque = thrown_for([](Dict& given) {
      given["param_groups"].list()[0]["odd"] = read_leaf(write_torch_archive(ByteSpan("\x80\x02"
                                                                                      "cown\nA\n)R."),
                                                                             {}));
    });
    CHECK_MESSAGE(opaque.says("[\"param_groups\"][0][\"odd\"]: "), opaque.what);

    options.broadcast_from_rank0 = false;
    const Dict after = training::get_optimizer_state_dict(*model, optimizer, options);
    CHECK(after.at("param_groups").list()[0]["lr"].to_double() == 0.01);
    for (const auto& [name, fields] : before.at("state").dict())
      CHECK(after.at("state")[name]["exp_avg"].tensor().equal(fields["exp_avg"].tensor()));
  });
}

TEST_CASE("B5.8 a state-dict type, set on a root that is not wrapped, and read back") {
  using training::StateDictType;
  on_ranks(2, [](const ProcessGroup& group) {
    auto model = composite();
    CHECK(thrown_by([&] { training::state_dict_type(*model); }).code == ErrorCode::kPrecondition);
    training::FullyShardOptions whole;
    whole.strategy = training::ShardingStrategy::kNoShard;
    fully_shard(*model->u1, ProcessMesh(group));
    fully_shard(*model->u2, ProcessMesh(group), whole);
    CHECK(training::state_dict_type(*model) == StateDictType::kSharded);
    torch::optim::Adam optimizer(model->parameters(), 0.01);
    for (const StateDictType type : {StateDictType::kLocal, StateDictType::kFull, StateDictType::kSharded}) {
      CAPTURE(static_cast<int>(type));
      training::set_state_dict_type(*model, type);
      CHECK(training::state_dict_type(*model) == type);
      CHECK(training::state_dict_type(*model->u1) == type);
      const auto [of_model, of_optimizer] = training::get_state_dict(*model, optimizer);
      for (const auto& [name, value] : of_model) {
        const auto& shown = name;
        CAPTURE(shown);
        const Value& moment = of_optimizer.at("state")[name]["exp_avg"];
        const bool is_cut = name.rfind("u1.", 0) == 0;
        CHECK(is_here(value));
        CHECK(is_here(moment));
        // The sharded child has sharded tensors, and the rest plain ones.
        CHECK(value.is_sharded() == (is_cut && type == StateDictType::kSharded));
        CHECK(moment.is_sharded() == value.is_sharded());
        if (value.is_sharded()) continue;
        const std::int64_t rows = is_cut && type == StateDictType::kLocal ? 3 : 6;
        CHECK(value.tensor().size(0) == rows);
        CHECK(moment.tensor().size(0) == rows);
        CHECK(value.tensor().is_same(model->named_parameters()[name]) == !(is_cut && type == StateDictType::kFull));
      }
      // Each form loads into a model of the same form.
      auto other = sharded_composite(group, 4);
      training::set_state_dict_type(*other, type);
      torch::optim::Adam other_optimizer(other->parameters(), 0.5);
      training::StateDictOptions loose;
      Dict copied;
      for (const auto& [name, value] : of_model) {
        if (name.rfind("u1.", 0) == 0) copied.insert(name, value);
      }
      loose.strict = false;
      training::set_model_state_dict(*other, copied, loose);
      CHECK(largest_difference(whole_parameters(*other->u1), whole_parameters(*model->u1)) == 0);
    }
    training::set_state_dict_type(*model->u1, StateDictType::kFull);
    CHECK(thrown_by([&] { training::state_dict_type(*model); }).says("have different ones"));
    CHECK(training::state_dict_type(*model->u2) == StateDictType::kSharded);
  });
}
