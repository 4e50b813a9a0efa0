#include <cairn/actors/links/transform.hpp>

namespace cairn {
namespace {

class PlainTransform : public Transform {
 public:
  void start(Wire&) override {}
  bool ready() const override { return true; }
  void receive(ByteSpan bytes, std::string& frames, Wire&) override { frames.append(bytes.data(), bytes.size()); }
  void send(ByteSpan frame, Wire& wire) override { wire.insert(wire.end(), frame.data(), frame.data() + frame.size()); }
};

}  // namespace

TransformFactory plain_transform() {
  return [](ConnectionSide) { return std::make_unique<PlainTransform>(); };
}

}  // namespace cairn
