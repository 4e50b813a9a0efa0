#include <cairn/actors/links/tls_transform.hpp>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

constexpr std::size_t kRecordBytes = 16384;
// TLS record types.
constexpr char kAlert = 21;
constexpr char kHandshake = 22;

struct Deleter {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* connection) const { SSL_free(connection); }
  void operator()(SSL_SESSION* session) const { SSL_SESSION_free(session); }
};
using Context = std::unique_ptr<SSL_CTX, Deleter>;
using Session = std::unique_ptr<SSL_SESSION, Deleter>;

// The key and its two contexts, shared by all connections of a rank.
class TlsKey {
 public:
  // `name` identifies the job and incarnation. With the rank appended it is the identity that an
  // opener presents.
  TlsKey(SecretBytes key, const std::string& name, int rank, std::uint64_t bytes)
      : bytes_per_key(bytes),
        key_(std::move(key)),
        name_(name + " "),
        identity_(name_ + std::to_string(rank)),
        opener_(make_context(TLS_client_method())),
        acceptor_(make_context(TLS_server_method())) {
    // The opener trusts no certificate, so a server that presents one fails.
    SSL_CTX_set_verify(opener_.get(), SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_psk_use_session_callback(opener_.get(), &TlsKey::use);
    SSL_CTX_set_psk_find_session_callback(acceptor_.get(), &TlsKey::find);
  }
  TlsKey(const TlsKey&) = delete;
  TlsKey& operator=(const TlsKey&) = delete;

  SSL_CTX* context(ConnectionSide side) const { return (side == ConnectionSide::kOpener ? opener_ : acceptor_).get(); }

  const std::uint64_t bytes_per_key;

 private:
  Context make_context(const SSL_METHOD* method) {
    Context context(SSL_CTX_new(method));
    SSL_CTX* const it = context.get();
    check_invariant(it != nullptr && SSL_CTX_set_min_proto_version(it, TLS1_3_VERSION) == 1 &&
                        SSL_CTX_set_max_proto_version(it, TLS1_3_VERSION) == 1 &&
                        // The key is bound to SHA-256, and so to the ciphers that use SHA-256.
                        SSL_CTX_set_ciphersuites(it, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256") == 1 &&
                        SSL_CTX_set1_groups_list(it, "X25519:P-256") == 1 && SSL_CTX_set_num_tickets(it, 0) == 1,
                    "OpenSSL offers TLS 1.3 with pre-shared keys");
    SSL_CTX_set_session_cache_mode(it, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(it, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_mode(it, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_app_data(it, this);
    return context;
  }

  Session make_session(SSL* connection) const {
    static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
    const SSL_CIPHER* const cipher = SSL_CIPHER_find(connection, aes_128_gcm_sha256);
    Session session(SSL_SESSION_new());
    if (session && cipher != nullptr && SSL_SESSION_set1_master_key(session.get(), key_.data(), key_.size()) == 1 &&
        SSL_SESSION_set_cipher(session.get(), cipher) == 1 && SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1)
      return session;
    return nullptr;
  }
  static const TlsKey& of(SSL* connection) {
    return *static_cast<const TlsKey*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(connection)));
  }
  static int use(SSL* connection, const EVP_MD*, const unsigned char** identity, std::size_t* size, SSL_SESSION** session) {
    const TlsKey& self = of(connection);
    *identity = reinterpret_cast<const unsigned char*>(self.identity_.data());
    *size = self.identity_.size();
    *session = self.make_session(connection).release();
    return *session != nullptr ? 1 : 0;
  }
  // An opener that names another job or incarnation gets no session. Without a certificate its
  // handshake then fails. The claimed rank is kept for TcpLinks::ask_back.
  static int find(SSL* connection, const unsigned char* identity, std::size_t size, SSL_SESSION** session) {
    const TlsKey& self = of(connection);
    const std::string_view shown(reinterpret_cast<const char*>(identity), size);
    const auto rank = shown.rfind(' ') + 1;
    int claimed = -1;
    std::from_chars(shown.data() + rank, shown.data() + size, claimed);
    *static_cast<int*>(SSL_get_app_data(connection)) = claimed;
    *session = shown.substr(0, rank) == self.name_ ? self.make_session(connection).release() : nullptr;
    return 1;
  }

  const SecretBytes key_;
  const std::string name_;
  const std::string identity_;
  const Context opener_;
  const Context acceptor_;
};

// Converts OpenSSL's last error. A peer that speaks TLS 1.3 but fails does not know the key;
// anything else is garbage.
Error handshake_fault() {
  const unsigned long code = ERR_peek_error();
  const int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
  const char* const text = ERR_reason_error_string(code);
  const std::string why = text == nullptr ? "it failed" : text;
  constexpr int kByTls[] = {SSL_R_BINDER_DOES_NOT_VERIFY,
                            SSL_R_CERTIFICATE_VERIFY_FAILED,
                            SSL_R_DIGEST_CHECK_FAILED,
                            SSL_R_NO_SHARED_CIPHER,
                            SSL_R_NO_SHARED_GROUPS,
                            SSL_R_NO_SUITABLE_KEY_SHARE,
                            SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM,
                            SSL_R_UNSUPPORTED_PROTOCOL};
  const bool sent_alert = reason >= SSL_AD_REASON_OFFSET;
  const bool speaks_tls = sent_alert || std::find(std::begin(kByTls), std::end(kByTls), reason) != std::end(kByTls);
  ERR_clear_error();
  if (speaks_tls)
    return Error(ErrorCode::kPermission, "it does not know the job's secret, or knows another (TLS handshake: " + why + ")");
  return Error(ErrorCode::kCorrupt, "it does not speak TLS as ranks with a secret do (TLS handshake: " + why + ")");
}

// TLS without a socket: OpenSSL reads from `input_`, and appends to `*output_`.
class TlsEngine {
 protected:
  TlsEngine(std::shared_ptr<const TlsKey> key, ConnectionSide side) : key_(std::move(key)), tls_(SSL_new(key_->context(side))) {
    BIO* const bio = BIO_new(bio_method());
    if (!tls_ || bio == nullptr) {
      BIO_free(bio);
      throw InternalError("no memory for a TLS connection");
    }
    BIO_set_data(bio, this);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls_.get(), bio, bio);
    SSL_set_app_data(tls_.get(), &claimed_rank_);
    side == ConnectionSide::kOpener ? SSL_set_connect_state(tls_.get()) : SSL_set_accept_state(tls_.get());
  }
  virtual ~TlsEngine() = default;

  // Called if `input_` is empty: puts bytes there if some have arrived. Returns false if none will.
  virtual bool refill() noexcept { return true; }

  // Goes on with the handshake. Returns whether it is done.
  bool hand_shake() {
    if (is_ready_) return true;
    ERR_clear_error();
    const auto before = output_->size();
    const int status = SSL_do_handshake(tls_.get());
    if (status != 1) {
      if (SSL_get_error(tls_.get(), status) == SSL_ERROR_WANT_READ) return false;
      if (output_->size() == before) say_tls_failure(*output_);  // OpenSSL sends no alert to a peer that does not speak TLS
      fail(status);
    }
    // OpenSSL ends handshakes that succeeded without the key.
    if (SSL_session_reused(tls_.get()) != 1 || SSL_version(tls_.get()) != TLS1_3_VERSION)
      throw Error(ErrorCode::kPermission, "it did not prove that it knows the job's secret");
    return is_ready_ = true;
  }

  // Receives from one record, and returns the number of bytes; 0 if the next has not arrived whole.
  std::size_t read(MutableByteSpan to) {
    ERR_clear_error();
    std::size_t count = 0;
    const int status = SSL_read_ex(tls_.get(), to.data(), to.size(), &count);
    if (status != 1 && SSL_get_error(tls_.get(), status) != SSL_ERROR_WANT_READ) fail(status);
    return count;
  }

  // Changes the key of this direction after `bytes_per_key`.
  void write(ByteSpan bytes) {
    ERR_clear_error();
    for (std::size_t at = 0; at < bytes.size(); at += kRecordBytes) {
      const auto length = std::min(kRecordBytes, bytes.size() - at);
      if (sent_with_key_ >= key_->bytes_per_key) {
        check_invariant(SSL_key_update(tls_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1, "a TLS connection may change its keys");
        sent_with_key_ = 0;
      }
      sent_with_key_ += length;
      std::size_t written = 0;
      check_invariant(SSL_write_ex(tls_.get(), bytes.data() + at, length, &written) == 1 && written == length,
                      "a TLS connection takes what is written to it");
    }
  }

  ByteSpan input_;
  Transform::Wire* output_ = nullptr;  // set before anything is called
  int claimed_rank_ = -1;
  bool is_ready_ = false;

 private:
  static const BIO_METHOD* bio_method() {
    static const BIO_METHOD* const method = [] {
      BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "cairn");
      BIO_meth_set_read(made, [](BIO* bio, char* to, int size) { return self(bio).take(bio, to, static_cast<std::size_t>(size)); });
      BIO_meth_set_write(made, [](BIO* bio, const char* from, int size) {
        self(bio).output_->insert(self(bio).output_->end(), from, from + size);
        return size;
      });
      BIO_meth_set_ctrl(made, [](BIO*, int command, long, void*) -> long { return command == BIO_CTRL_FLUSH ? 1 : 0; });
      return made;
    }();
    return method;
  }
  static TlsEngine& self(BIO* bio) { return *static_cast<TlsEngine*>(BIO_get_data(bio)); }
  int take(BIO* bio, char* to, std::size_t size) {
    BIO_clear_retry_flags(bio);
    if (input_.empty() && !refill()) return 0;
    if (input_.empty()) {
      BIO_set_retry_read(bio);
      return -1;
    }
    size = std::min(size, input_.size());
    std::memcpy(to, input_.data(), size);
    input_ = input_.subspan(size, input_.size() - size);
    return static_cast<int>(size);
  }

  [[noreturn]] void fail(int result) {
    const int status = SSL_get_error(tls_.get(), result);
    const unsigned long code = ERR_peek_error();
    const bool is_end = status == SSL_ERROR_ZERO_RETURN || status == SSL_ERROR_SYSCALL ||
                        ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
    if (!is_end && !is_ready_) throw handshake_fault();
    const char* const text = ERR_reason_error_string(code);
    const std::string why = text == nullptr ? "the stream was ended" : text;
    ERR_clear_error();
    if (!is_end) throw Error(ErrorCode::kCorrupt, "what came is no TLS record that belongs here: " + why);
    throw Error(ErrorCode::kUnavailable,
                is_ready_ ? "the connection was closed" : "the connection was closed during the TLS handshake");
  }

  const std::shared_ptr<const TlsKey> key_;
  std::uint64_t sent_with_key_ = 0;
  const std::unique_ptr<SSL, Deleter> tls_;
};

class TlsTransform : public Transform, private TlsEngine {
 public:
  TlsTransform(std::shared_ptr<const TlsKey> key, ConnectionSide side) : TlsEngine(std::move(key), side) {}

  void start(Wire& wire) override {
    output_ = &wire;
    hand_shake();
  }
  bool ready() const override { return is_ready_; }
  int claimed_rank() const override { return claimed_rank_; }

  void receive(ByteSpan bytes, std::string& frames, Wire& wire) override {
    input_ = bytes;
    output_ = &wire;
    if (!hand_shake()) return;
    // Ranks say goodbye in a frame and do not use TLS's close_notify.
    char record[kRecordBytes];
    while (const auto count = read({record, sizeof(record)})) frames.append(record, count);
  }

  void send(ByteSpan frame, Wire& wire) override {
    check_invariant(is_ready_, "frames are sent once the TLS handshake is done");
    output_ = &wire;
    write(frame);
  }
};

// Moves many records per system call.
class TlsSocket : public ByteSocket, private TlsEngine {
 public:
  TlsSocket(std::shared_ptr<const TlsKey> key, ConnectionSide side, int descriptor)
      : TlsEngine(std::move(key), side), socket_(plain_socket()(side, descriptor)), received_(kBufferBytes) {
    output_ = &sent_;
  }

  std::size_t put(ByteSpan bytes) override {
    if (!is_open() || !flush()) return 0;
    bytes = bytes.subspan(0, std::min(bytes.size(), kBufferBytes));
    write(bytes);
    flush();
    return bytes.size();
  }

  bool flush() override {
    while (flushed_ < sent_.size()) {
      const auto count = socket_->put({sent_.data() + flushed_, sent_.size() - flushed_});
      if (count == 0) return false;
      flushed_ += count;
    }
    sent_.clear();
    flushed_ = 0;
    return true;
  }

  std::size_t get(MutableByteSpan to) override {
    std::size_t at = 0;
    while (at < to.size() && is_open()) {
      const auto count = read(to.subspan(at, to.size() - at));
      if (count == 0) break;
      at += count;
    }
    return at;
  }

  // During the handshake bytes must come from the peer first.
  bool lacks_room() const override { return is_ready_; }

 private:
  static constexpr std::size_t kBufferBytes = 128u << 10;

  bool refill() noexcept override {
    try {
      input_ = {received_.data(), socket_->get({received_.data(), received_.size()})};
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  bool is_open() {
    if (is_ready_) return true;
    try {
      hand_shake();
    } catch (const Error&) {
      flush();  // with the alert
      throw;
    }
    flush();
    return is_ready_;
  }

  const std::unique_ptr<ByteSocket> socket_;
  std::vector<char> received_;  // from the socket; `input_` is the rest
  Transform::Wire sent_;        // for the socket, from `flushed_` on
  std::size_t flushed_ = 0;
};

// Returns the key for `use`. The identity sent in clear text reveals neither the secret nor the
// incarnation.
std::shared_ptr<const TlsKey> make_key(const Secret& secret, const std::string& use, const std::string& key_context, int rank,
                                       std::uint64_t bytes_per_key) {
  return std::make_shared<const TlsKey>(secret.derive("cairn " + use + " v1 key", key_context),
                                        "cairn-" + use + "-v1 " + secret.sign("cairn " + use + " v1 identity", key_context), rank,
                                        bytes_per_key);
}

}  // namespace

TransformFactory tls_transform(const Secret& secret, const std::string& key_context, int rank, std::uint64_t bytes_per_key) {
  const auto key = make_key(secret, "link", key_context, rank, bytes_per_key);
  return [key](ConnectionSide side) { return std::make_unique<TlsTransform>(key, side); };
}

ByteSocketFactory tls_socket(const Secret& secret, const std::string& key_context, int rank, std::uint64_t bytes_per_key) {
  const auto key = make_key(secret, "data", key_context, rank, bytes_per_key);
  return [key](ConnectionSide side, int descriptor) { return std::make_unique<TlsSocket>(key, side, descriptor); };
}

bool looks_like_tls(ByteSpan first_bytes) {
  const char* const bytes = first_bytes.data();
  return (bytes[0] == kAlert || bytes[0] == kHandshake) && (first_bytes.size() < 2 || bytes[1] == 3);
}

void say_tls_failure(Transform::Wire& wire) {
  constexpr char kFatalHandshakeFailure[] = {kAlert, 3, 3, 0, 2, 2, 40};
  wire.insert(wire.end(), std::begin(kFatalHandshakeFailure), std::end(kFatalHandshakeFailure));
}

}  // namespace cairn
