// TLS between ranks, without sockets. The test passes the output of one end to the other: complete,
// truncated or changed.
#include <cairn/tests/support/torch.hpp>
//
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cairn/actors/links/plain_transform.hpp>
#include <cairn/actors/links/tls_transform.hpp>
#include <cairn/base/error.hpp>

namespace cairn::testing {
namespace {

using Wire = Transform::Wire;

const std::string kLife(32, 'a');
constexpr std::string_view kOurs = "our secret, long enough";
constexpr std::string_view kTheirs = "another secret, as long";

TransformFactory tls(std::string_view secret = kOurs, const std::string& incarnation = kLife) {
  return tls_transform(Secret(secret), incarnation, 3);
}

// One end of a connection, with everything that it received.
struct End {
  explicit End(std::unique_ptr<Transform> transform_in) : transform(std::move(transform_in)) { transform->start(sent); }

  void hear(ByteSpan bytes) {
    if (fault) return;
    try {
      transform->receive(bytes, frames, sent);
    } catch (const Error& error) {
      fault = error;
    }
  }
  bool ready() const { return !fault && transform->ready(); }
  void say(const std::string& text) { transform->send(text, sent); }
  ErrorCode code() const { return fault ? fault->code() : ErrorCode::kInternal; }
  std::string why() const { return fault ? fault->what() : ""; }

  std::unique_ptr<Transform> transform;
  Wire sent;  // not passed on yet
  std::string frames;
  std::optional<Error> fault;
};

// Changes the bytes of one flight; flights are numbered from 0.
using Tamper = std::function<void(int flight, Wire& bytes)>;

struct Pair {
  Pair(const TransformFactory& opener_kind, const TransformFactory& acceptor_kind)
      : opener(opener_kind(ConnectionSide::kOpener)), acceptor(acceptor_kind(ConnectionSide::kAcceptor)) {}

  // Passes on the output of both ends until neither has any left.
  void talk(const Tamper& tamper = {}) {
    while (!opener.sent.empty() || !acceptor.sent.empty()) {
      pass(opener, acceptor, to_acceptor, tamper);
      pass(acceptor, opener, to_opener, tamper);
    }
  }

  End opener;
  End acceptor;
  std::vector<Wire> to_acceptor;  // everything passed to the acceptor
  std::vector<Wire> to_opener;

 private:
  void pass(End& from, End& to, std::vector<Wire>& log, const Tamper& tamper) {
    if (from.sent.empty()) return;
    Wire bytes = std::exchange(from.sent, {});
    if (tamper) tamper(flight_, bytes);
    ++flight_;
    log.push_back(bytes);
    to.hear(ByteSpan(bytes.data(), bytes.size()));
  }
  int flight_ = 0;
};

std::string random_text(std::mt19937& random, std::size_t size) {
  std::string text(size, '\0');
  for (auto& byte : text) byte = static_cast<char>(random());
  return text;
}

// --- foreign peers: plain OpenSSL ----------------------------------------------------------------

class ForeignTls : public Transform {
 public:
  ForeignTls(std::shared_ptr<SSL_CTX> context, ConnectionSide side) : context_(std::move(context)), tls_(SSL_new(context_.get())) {
    SSL_set_bio(tls_, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    side == ConnectionSide::kOpener ? SSL_set_connect_state(tls_) : SSL_set_accept_state(tls_);
  }
  ~ForeignTls() override { SSL_free(tls_); }
  ForeignTls(const ForeignTls&) = delete;
  ForeignTls& operator=(const ForeignTls&) = delete;

  void start(Wire& wire) override { step(wire); }
  bool ready() const override { return SSL_is_init_finished(tls_) == 1; }
  void receive(ByteSpan bytes, std::string& frames, Wire& wire) override {
    BIO_write(SSL_get_rbio(tls_), bytes.data(), static_cast<int>(bytes.size()));
    step(wire);
    char buffer[4096];
    for (int count = 0; ready() && (count = SSL_read(tls_, buffer, sizeof(buffer))) > 0;)
      frames.append(buffer, static_cast<std::size_t>(count));
    ERR_clear_error();
  }
  void send(ByteSpan frame, Wire& wire) override {
    SSL_write(tls_, frame.data(), static_cast<int>(frame.size()));
    take(wire);
  }

 private:
  void step(Wire& wire) {
    const int status = SSL_do_handshake(tls_);
    const bool failed = status != 1 && SSL_get_error(tls_, status) != SSL_ERROR_WANT_READ;
    ERR_clear_error();
    take(wire);
    if (failed) throw Error(ErrorCode::kPermission, "the handshake failed");
  }
  void take(Wire& wire) {
    char buffer[4096];
    for (int count = 0; (count = BIO_read(SSL_get_wbio(tls_), buffer, sizeof(buffer))) > 0;)
      wire.insert(wire.end(), buffer, buffer + count);
  }
  std::shared_ptr<SSL_CTX> context_;
  SSL* tls_;
};

TransformFactory foreign(const std::function<void(SSL_CTX*)>& configure) {
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  configure(context.get());
  return [context](ConnectionSide side) { return std::make_unique<ForeignTls>(context, side); };
}

// Uses a self-signed certificate for an arbitrary name.
void give_certificate(SSL_CTX* context) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  X509_set_pubkey(certificate, key);
  REQUIRE(X509_sign(certificate, key, EVP_sha256()) > 0);
  REQUIRE(SSL_CTX_use_certificate(context, certificate) == 1);
  REQUIRE(SSL_CTX_use_PrivateKey(context, key) == 1);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

// A guessed pre-shared key, in the style of TLS 1.2; OpenSSL also uses it for TLS 1.3.
unsigned guess_as_client(SSL*, const char*, char* identity, unsigned, unsigned char* key, unsigned) {
  std::strcpy(identity, "cairn-link-v1 guess");
  std::memset(key, 7, 32);
  return 32;
}
unsigned guess_as_server(SSL*, const char*, unsigned char* key, unsigned) {
  std::memset(key, 7, 32);
  return 32;
}

// --- tests ---------------------------------------------------------------------------------------

TEST_CASE("messages of ranks with one secret arrive, and are encrypted") {
  Pair pair(tls(), tls());
  pair.talk();
  REQUIRE(pair.opener.ready());
  REQUIRE(pair.acceptor.ready());
  std::mt19937 random(1);
  std::string said;
  for (const std::size_t size : {1, 100, 16'383, 16'384, 16'385, 300'000}) {
    const std::string text = random_text(random, size);
    said += text;
    pair.opener.say(text);
    pair.acceptor.say(text);
  }
  pair.talk();
  CHECK((pair.acceptor.frames == said));
  CHECK((pair.opener.frames == said));
  const std::string part = said.substr(said.size() / 2, 16);
  for (const auto& bytes : pair.to_acceptor)
    CHECK(std::search(bytes.begin(), bytes.end(), part.begin(), part.end()) == bytes.end());
}

TEST_CASE("a handshake may come byte by byte") {
  Pair pair(tls(), tls());
  for (int round = 0; round < 3; ++round) {
    const Wire forth = std::exchange(pair.opener.sent, {});
    for (const char byte : forth) pair.acceptor.hear(ByteSpan(&byte, 1));
    const Wire back = std::exchange(pair.acceptor.sent, {});
    for (const char byte : back) pair.opener.hear(ByteSpan(&byte, 1));
  }
  CHECK(pair.opener.ready());
  CHECK(pair.acceptor.ready());
}

TEST_CASE("keys are updated during a connection") {
  const auto often = tls_transform(Secret(kOurs), kLife, 0, 50'000);
  Pair pair(often, often);
  pair.talk();
  std::mt19937 random(2);
  const std::string text = random_text(random, 1'000'000);
  pair.opener.say(text);
  pair.talk();
  pair.acceptor.say(text);
  pair.talk();
  CHECK((pair.acceptor.frames == text));
  CHECK((pair.opener.frames == text));
}

TEST_CASE("a peer with another secret or incarnation is refused by both sides") {
  std::optional<Pair> pair;
  SUBCASE("the acceptor has another secret") { pair.emplace(tls(), tls(kTheirs)); }
  SUBCASE("the opener has another secret") { pair.emplace(tls(kTheirs), tls()); }
  SUBCASE("another incarnation: the key of another life, or of another job with the same secret") {
    pair.emplace(tls(), tls(kOurs, std::string(32, 'b')));
  }
  pair->talk();
  CHECK_FALSE(pair->opener.ready());
  CHECK_FALSE(pair->acceptor.ready());
  for (const End* end : {&pair->opener, &pair->acceptor}) {
    CHECK(end->code() == ErrorCode::kPermission);
    CHECK(end->why().find("secret") != std::string::npos);
    CHECK(end->why().find(kOurs) == std::string::npos);
    CHECK(end->why().find(kTheirs) == std::string::npos);
  }
  CHECK(pair->acceptor.transform->claimed_rank() == 3);
}

TEST_CASE("a rank with a secret and one without tell each other apart") {
  std::optional<Pair> pair;
  const std::string frame("\0\0\0\5hello", 9);
  SUBCASE("a plain opener") {
    pair.emplace(plain_transform(), tls());
    pair->opener.say(frame);
    pair->talk();
    CHECK(pair->acceptor.code() == ErrorCode::kCorrupt);
    CHECK(pair->opener.code() == ErrorCode::kPermission);
    CHECK(pair->opener.why().find("has none") != std::string::npos);
  }
  SUBCASE("a plain acceptor") {
    pair.emplace(tls(), plain_transform());
    pair->talk();
    CHECK(pair->acceptor.code() == ErrorCode::kPermission);
    CHECK(pair->acceptor.why().find("has none") != std::string::npos);
    CHECK(pair->opener.code() == ErrorCode::kPermission);
  }
  SUBCASE("a plain acceptor that speaks first") {
    pair.emplace(tls(), plain_transform());
    pair->acceptor.say(frame);
    pair->talk();
    CHECK(pair->opener.code() == ErrorCode::kCorrupt);
  }
  CHECK(pair->opener.frames.empty());
  CHECK(pair->acceptor.frames.empty());
}

TEST_CASE("a server is refused that has a certificate instead of the key") {
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    for (const bool guesses : {false, true}) {
      const auto rogue = foreign([&](SSL_CTX* context) {
        give_certificate(context);
        SSL_CTX_set_min_proto_version(context, version);
        SSL_CTX_set_max_proto_version(context, version);
        if (guesses) SSL_CTX_set_psk_server_callback(context, guess_as_server);
      });
      Pair pair(tls(), rogue);
      pair.talk();
      CHECK_FALSE(pair.opener.ready());
      CHECK(pair.opener.code() == ErrorCode::kPermission);
    }
  }
  // The foreign server works with a client that trusts it.
  Pair trusting(foreign([](SSL_CTX* context) { SSL_CTX_set_verify(context, SSL_VERIFY_NONE, nullptr); }),
                foreign(give_certificate));
  trusting.talk();
  CHECK(trusting.opener.ready());
}

TEST_CASE("a client is refused that speaks an older TLS, has no key, or guesses one") {
  for (const int version : {TLS1_1_VERSION, TLS1_2_VERSION, TLS1_3_VERSION}) {
    for (const bool guesses : {false, true}) {
      CAPTURE(version);
      CAPTURE(guesses);
      const auto stranger = foreign([&](SSL_CTX* context) {
        SSL_CTX_set_security_level(context, 0);
        SSL_CTX_set_min_proto_version(context, version);
        SSL_CTX_set_max_proto_version(context, version);
        SSL_CTX_set_verify(context, SSL_VERIFY_NONE, nullptr);
        if (guesses) SSL_CTX_set_psk_client_callback(context, guess_as_client);
      });
      Pair pair(stranger, tls());
      pair.talk();
      CHECK_FALSE(pair.acceptor.ready());
      CHECK(pair.acceptor.code() == ErrorCode::kPermission);
      CHECK_FALSE(pair.opener.ready());
    }
  }
}

TEST_CASE("a handshake that ends early makes nobody ready") {
  Pair whole(tls(), tls());
  whole.talk();
  REQUIRE(whole.to_acceptor.size() == 2);
  REQUIRE(whole.to_opener.size() == 1);
  std::mt19937 random(3);
  for (int flight = 0; flight < 3; ++flight) {
    for (int trial = 0; trial < 40; ++trial) {
      Pair pair(tls(), tls());
      pair.talk([&](int number, Wire& bytes) {
        if (number == flight) bytes.resize(random() % bytes.size());
      });
      CHECK_FALSE(pair.acceptor.ready());
      CHECK(pair.acceptor.frames.empty());
      CHECK(pair.opener.ready() == (flight == 2));  // its own handshake is complete by then
    }
  }
}

TEST_CASE("changed bytes break the handshake, or the link after it, and never what is said") {
  std::mt19937 random(4);
  int broken = 0;
  constexpr int kTrials = 600;
  for (int trial = 0; trial < kTrials; ++trial) {
    Pair pair(tls(), tls());
    pair.talk([&](int number, Wire& bytes) {
      if (number != trial % 3) return;
      switch (random() % 4) {
        case 0:
          bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
          break;
        case 1:
          bytes[random() % bytes.size()] = static_cast<char>(random());
          break;
        case 2:
          bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(random() % bytes.size()), static_cast<char>(random()));
          break;
        default:
          bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(random() % bytes.size()));
      }
    });
    if (!pair.opener.ready() || !pair.acceptor.ready()) {
      ++broken;
      CHECK(pair.acceptor.frames.empty());
      CHECK(pair.opener.frames.empty());
      continue;
    }
    // The change may hit bytes that nothing depends on, like the version in a record header: all is
    // well. Or it repeats the last byte, which then begins an invalid next record.
    pair.opener.say("said");
    pair.acceptor.say("answered");
    pair.talk();
    CHECK((pair.acceptor.frames.empty() || pair.acceptor.frames == "said"));
    CHECK((pair.opener.frames.empty() || pair.opener.frames == "answered"));
  }
  CHECK(broken > kTrials * 9 / 10);
}

TEST_CASE("changed bytes after the handshake are found") {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    Pair pair(tls(), tls());
    pair.talk();
    pair.opener.say("a frame");
    auto& bytes = pair.opener.sent;
    bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    pair.talk();
    CHECK(pair.acceptor.frames.empty());
    // A record that claims to be longer is waited for until the heartbeat timeout.
    CHECK((pair.acceptor.code() == ErrorCode::kCorrupt || !pair.acceptor.fault));
  }
}

TEST_CASE("a record beyond TLS's own limit is refused by its length") {
  Pair pair(tls(), tls());
  SUBCASE("as the first") {}
  SUBCASE("after the handshake") { pair.talk(); }
  const char record[] = {23, 3, 3, '\xff', '\xff', 0};
  pair.acceptor.hear(ByteSpan(record, sizeof(record)));
  CHECK(pair.acceptor.code() == ErrorCode::kCorrupt);
  CHECK(pair.acceptor.frames.empty());
}

TEST_CASE("a replayed handshake opens no second connection") {
  Pair honest(tls(), tls());
  honest.talk();
  honest.opener.say("save");
  honest.talk();
  REQUIRE(honest.acceptor.frames == "save");
  // An eavesdropper replays all of it to the same rank.
  End acceptor(tls()(ConnectionSide::kAcceptor));
  for (const auto& bytes : honest.to_acceptor) acceptor.hear(ByteSpan(bytes.data(), bytes.size()));
  CHECK_FALSE(acceptor.ready());
  CHECK(acceptor.fault);
  CHECK(acceptor.frames.empty());
}

TEST_CASE("a peer that sends a TLS close_notify is refused") {
  Pair pair(tls(), tls());
  pair.talk();
  // A plaintext alert, which anybody could inject into the stream.
  const char close_notify[] = {21, 3, 3, 0, 2, 1, 0};
  pair.acceptor.hear(ByteSpan(close_notify, sizeof(close_notify)));
  CHECK(pair.acceptor.code() == ErrorCode::kCorrupt);
}

TEST_CASE("the unencrypted bytes reveal neither secret nor incarnation") {
  Pair pair(tls(), tls());
  pair.talk();
  for (const auto* log : {&pair.to_acceptor, &pair.to_opener}) {
    for (const auto& bytes : *log) {
      for (const std::string_view told : {kOurs, std::string_view(kLife)})
        CHECK(std::search(bytes.begin(), bytes.end(), told.begin(), told.end()) == bytes.end());
    }
  }
}

}  // namespace
}  // namespace cairn::testing
