#include <cairn/actors/links/plain_transform.hpp>

#include <cairn/actors/links/tls_transform.hpp>
#include <cairn/base/error.hpp>

namespace cairn {
namespace {

class PlainTransform : public Transform {
 public:
  void start(Wire&) override {}
  bool ready() const override { return true; }
  void receive(ByteSpan bytes, std::string& frames, Wire& wire) override {
    if (!begun_ && !bytes.empty()) {
      begun_ = true;
      if (looks_like_tls(bytes)) {
        say_tls_failure(wire);
        throw Error(ErrorCode::kPermission, "it speaks TLS, so it has a secret, and this rank has none");
      }
    }
    frames.append(bytes.data(), bytes.size());
  }
  void send(ByteSpan frame, Wire& wire) override { wire.insert(wire.end(), frame.data(), frame.data() + frame.size()); }

 private:
  bool begun_ = false;  // bytes have arrived
};

}  // namespace

TransformFactory plain_transform() {
  return [](ConnectionSide) { return std::make_unique<PlainTransform>(); };
}

void check_loopback(const Endpoint& endpoint) {
  if (is_loopback(endpoint)) return;
  throw Error(ErrorCode::kPrecondition,
              "ranks without a secret talk over loopback addresses only, and " + to_string(endpoint) +
                  " is none: start them with cairn-launch, or give all ranks the same secret in a file of mode 0600, named by " +
                  "WorldOptions::secret_file or CAIRN_SECRET_FILE");
}

}  // namespace cairn
