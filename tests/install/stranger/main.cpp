// Uses Protobuf, spdlog, CLI11 and OpenSSL in its own way, beside a world of two ranks that talk
// over TLS. Ends with 0 if neither has met the other.
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <exception>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cairn/base/log.hpp>
#include <cairn/runtime/cairn.hpp>

#include "metadata.pb.h"

namespace {

int faults = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "not so: " << what << '\n';
  ++faults;
}

std::string descriptor_of_the_own_file() {
  const auto* file = google::protobuf::DescriptorPool::generated_pool()->FindFileByName("metadata.proto");
  return file == nullptr ? "" : file->package();
}

cairn::StateDict state_of(float value) { return {{"weights", torch::full({3, 4}, value)}, {"step", 7}}; }

void save_on_two_ranks(const std::string& checkpoint) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> thrown(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        cairn::WorldOptions options;
        options.secret = "a secret of these two ranks";
        const cairn::World world = cairn::World::from_store(store, rank, 2, options);
        if (!world.secured()) throw std::logic_error("the ranks do not use TLS");
        cairn::Checkpointer(world).save(state_of(2.5f), checkpoint);
      } catch (...) {
        thrown[rank] = std::current_exception();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const std::exception_ptr& exception : thrown)
    if (exception) std::rethrow_exception(exception);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"A program of its own"};
  std::string directory;
  app.add_option("directory", directory)->required();
  CLI11_PARSE(app, argc, argv);

  std::ostringstream own_log;
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("cairn", std::make_shared<spdlog::sinks::ostream_sink_mt>(own_log)));
  spdlog::set_pattern("%v");
  spdlog::info("begin");

  SSL_CTX* const context = SSL_CTX_new(TLS_server_method());
  SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_cipher_list(context, "ECDHE-RSA-AES128-GCM-SHA256");

  stranger::metadata::Note note;
  note.set_text("mine");
  expect(descriptor_of_the_own_file() == "stranger.metadata", "the program's own metadata.proto is registered");

  const std::string checkpoint = cairn::child_url(directory, "step_7");
  try {
    cairn::write_log(cairn::LogLevel::kWarning, 0, "a line of Cairn's");
    save_on_two_ranks(checkpoint);
    cairn::StateDict restored = state_of(0);
    cairn::load(restored, checkpoint);
    expect(torch::equal(restored["weights"].tensor(), torch::full({3, 4}, 2.5f)), "the weights come back");
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }

  expect(note.ShortDebugString() == "text: \"mine\"", "the full runtime still describes messages");
  spdlog::info("end");
  expect(own_log.str() == "begin\nend\n", "the program's log has its own lines only");
  expect(SSL_CTX_get_max_proto_version(context) == TLS1_2_VERSION, "the program's TLS settings stay");
  expect(ERR_peek_error() == 0, "no error of OpenSSL's is left on this thread");
  SSL_CTX_free(context);
  std::cout << "step 7\n";
  return faults == 0 ? 0 : 1;
}
