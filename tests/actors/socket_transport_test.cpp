// The data plane: streams through shared memory, TCP and TLS.
#include <cairn/tests/support/plain.hpp>
//
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cairn/actors/links/data_stream.hpp>
#include <cairn/actors/links/socket.hpp>
#include <cairn/actors/links/socket_transport.hpp>
#include <cairn/base/error.hpp>
#include <cairn/tests/support/leak_check.hpp>
#include <cairn/tests/support/skipped.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {
namespace {

constexpr std::size_t kBlock = kDataBlockBytesMax;
constexpr std::chrono::seconds kLong{60};         // only a hang reaches it
constexpr std::chrono::milliseconds kShort{800};  // for deadlines that pass
constexpr const char* kDataSecret = "the secret of the data plane's tests";

TransportConfig data_config(int rank, const char* secret = "", bool shared_memory = false) {
  TransportConfig config;
  config.rank = rank;
  config.incarnation = "0123456789abcdef0123456789abcdef";
  if (*secret != '\0') config.secret = Secret(std::string_view(secret));
  config.shared_memory = shared_memory;
  config.silence = kLong;
  config.handshake_deadline = std::chrono::hours(1);  // so that nobody is refused by it
  return config;
}

struct OverMemory {
  static TransportConfig config(int rank) { return data_config(rank, kDataSecret, true); }
};
struct OverTcp {
  static TransportConfig config(int rank) { return data_config(rank); }
};
struct OverTls {
  static TransportConfig config(int rank) { return data_config(rank, kDataSecret); }
};
#define CAIRN_WAYS OverMemory, OverTcp, OverTls

std::string data_bytes(std::size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((i * 2654435761u + seed) >> 13);
  return bytes;
}

// Receives to the end of the stream, with a buffer of `buffer_bytes`.
std::string receive_all(DataStream& stream, std::size_t buffer_bytes = kBlock) {
  std::string all, buffer(buffer_bytes, '\0');
  while (const auto count = stream.receive({buffer.data(), buffer.size()})) all.append(buffer, 0, count);
  return all;
}

struct TwoDataRanks : LeakCheck {
  TwoDataRanks(TransportConfig first, TransportConfig second)
      : zero(make_transport(std::move(first))), one(make_transport(std::move(second))) {}
  // Opens a stream from rank 0 to rank 1.
  void open(std::uint64_t number = 7) {
    sender = zero->open(one->address(), number);
    receiver = one->receive(0, number, kLong);
  }
  std::unique_ptr<Transport> zero, one;
  std::shared_ptr<DataStream> sender, receiver;
};
template <class Way>
struct TwoRanksOver : TwoDataRanks {
  TwoRanksOver() : TwoDataRanks(Way::config(0), Way::config(1)) {}
};

TEST_CASE_TEMPLATE("data: many streams between several ranks arrive whole", Way, CAIRN_WAYS) {
  const LeakCheck leaks;
  const std::vector<std::size_t> sizes{0, 1, kBlock, 5 * kBlock + kBlock / 2};
  std::vector<std::unique_ptr<Transport>> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.push_back(make_transport(Way::config(rank)));
  std::vector<std::future<std::string>> senders;
  std::vector<std::pair<std::string, std::future<std::string>>> receivers;
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      for (std::size_t i = 0; i < sizes.size() && from != to; ++i) {
        const std::string bytes = data_bytes(sizes[i], static_cast<unsigned>(100 * from + 10 * to));
        senders.push_back(std::async(std::launch::async, [&ranks, from, to, i, bytes] {
          const auto stream = ranks[static_cast<std::size_t>(from)]->open(ranks[static_cast<std::size_t>(to)]->address(), i);
          const auto half = bytes.size() / 3;  // not on the border of a block
          stream->send(ByteSpan(bytes).subspan(0, half));
          stream->send(ByteSpan(bytes).subspan(half, bytes.size() - half));
          stream->finish();
          return stream->why_tcp();
        }));
        receivers.emplace_back(bytes, std::async(std::launch::async, [&ranks, from, to, i] {
                                 const auto stream = ranks[static_cast<std::size_t>(to)]->receive(from, i, kLong);
                                 const std::string all = receive_all(*stream, i % 2 == 0 ? kBlock : 100000);
                                 char more = 0;
                                 CHECK(stream->receive({&more, 1}) == 0);  // the end stays the end
                                 return all;
                               }));
      }
    }
  }
  for (auto& [wanted, received] : receivers) CHECK((received.get() == wanted));
  for (auto& why : senders) CHECK(why.get().empty() == std::is_same_v<Way, OverMemory>);
}

TEST_CASE_TEMPLATE("data: a receiver that does not read stops its sender and nobody else", Way, CAIRN_WAYS) {
  TwoRanksOver<Way> ranks;
  ranks.open();
  // More than all buffers hold.
  const std::size_t pieces = 160;
  const std::string piece = data_bytes(kBlock, 3);
  std::atomic<std::size_t> sent{0};
  std::thread slow([&] {
    for (std::size_t i = 0; i < pieces; ++i, ++sent) ranks.sender->send(piece);
    ranks.sender->finish();
  });
  for (std::uint64_t number = 100; number < 120; ++number) {
    auto other = std::async(std::launch::async, [&] { return receive_all(*ranks.one->receive(0, number, kLong)); });
    const auto stream = ranks.zero->open(ranks.one->address(), number);
    stream->send(piece);
    stream->finish();
    CHECK((other.get() == piece));
  }
  std::size_t bound = 4;  // blocks in the window
  if (!std::is_same_v<Way, OverMemory>) {
    for (const char* name : {"/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/ipv4/tcp_wmem"}) {
      std::size_t least = 0, usual = 0, most = 0;
      std::ifstream(name) >> least >> usual >> most;
      bound += most / kBlock;
    }
  }
  REQUIRE(bound < pieces);
  CHECK(sent <= bound);
  std::size_t received = 0;
  std::string buffer(kBlock, '\0');
  while (const auto count = ranks.receiver->receive({buffer.data(), buffer.size()})) received += count;
  CHECK(received == pieces * kBlock);
  slow.join();
}

// Another process, which runs the case "data: another process" of this binary. Closing its input
// has no effect: the test kills it.
class DataChild {
 public:
  DataChild(const std::string& role, const TransportConfig& config, std::chrono::milliseconds silence, const DataAddress& parent) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    char self[PATH_MAX] = {};
    REQUIRE(::readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
    const std::string job = role + "|" + (config.secret.empty() ? "" : kDataSecret) + "|" + (config.shared_memory ? "1" : "0") +
                            "|" + std::to_string(silence.count()) + "|" + to_string(parent);
    ::setenv("CAIRN_TEST_DATA_CHILD", job.c_str(), 1);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(ends[1], 3);
      ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
      ::execl(self, self, "-tc=data: another process", "--no-skip", static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::unsetenv("CAIRN_TEST_DATA_CHILD");
    ::close(ends[1]);
    pipe_.reset(ends[0]);
  }
  ~DataChild() { kill(); }
  DataChild(const DataChild&) = delete;
  DataChild& operator=(const DataChild&) = delete;

  std::string line() {
    std::string text;
    for (char c = 0; ::read(pipe_.get(), &c, 1) == 1 && c != '\n';) text += c;
    return text;
  }
  void freeze() const { ::kill(pid_, SIGSTOP); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  Socket pipe_;
};

TEST_CASE("data: another process" * doctest::skip()) {
  std::istringstream job(std::getenv("CAIRN_TEST_DATA_CHILD"));
  std::string role, secret, shared_memory, silence, parent;
  for (std::string* part : {&role, &secret, &shared_memory, &silence, &parent}) std::getline(job, *part, '|');
  TransportConfig config = data_config(1, secret.c_str(), shared_memory == "1");
  config.silence = std::chrono::milliseconds(std::stoi(silence));
  const auto transport = make_transport(std::move(config));
  const auto tell = [](const std::string& text) { REQUIRE(::write(3, (text + "\n").data(), text.size() + 1) > 0); };
  if (role == "send") {
    const auto stream = transport->open(parse_data_address(parent), 7);
    for (;;) stream->send(data_bytes(1000000, 1));
  }
  tell(to_string(transport->address()));
  const auto stream = transport->receive(0, 7, kLong);
  std::string buffer(kBlock, '\0');
  stream->receive({buffer.data(), buffer.size()});
  tell("received");
  for (;;) ::pause();
}

template <class Way>
void check_death(bool frozen) {
  const LeakCheck leaks;
  const TransportConfig usual = Way::config(0);
  const std::chrono::milliseconds silence = frozen ? kShort : kLong;
  const auto make = [&] {
    TransportConfig config = Way::config(0);
    config.silence = silence;
    return make_transport(std::move(config));
  };
  const auto code = frozen ? ErrorCode::kDeadline : ErrorCode::kUnavailable;
  SUBCASE("the sender") {
    const auto transport = make();
    DataChild child("send", usual, silence, transport->address());
    const auto stream = transport->receive(1, 7, kLong);
    std::string buffer(kBlock, '\0');
    for (int i = 0; i < 20; ++i) CHECK(stream->receive({buffer.data(), buffer.size()}) > 0);
    frozen ? child.freeze() : child.kill();
    const Thrown thrown = thrown_by([&] {
      while (stream->receive({buffer.data(), buffer.size()}) > 0) {
      }
    });
    CHECK(thrown == Saying{code, "stream 7 from rank 1 ("});
  }
  SUBCASE("the receiver") {
    const auto transport = make();
    DataChild child("receive", usual, silence, {});
    const auto stream = transport->open(parse_data_address(child.line()), 7);
    const std::string piece = data_bytes(kBlock, 1);
    auto sending = std::async(std::launch::async, [&] {
      return thrown_by([&] {
        for (;;) stream->send(piece);
      });
    });
    CHECK(child.line() == "received");
    frozen ? child.freeze() : child.kill();
    CHECK(sending.get() == Saying{code, "stream 7 to rank 1 ("});
  }
}

TEST_CASE_TEMPLATE("data: a killed process ends its streams", Way, CAIRN_WAYS) { check_death<Way>(false); }
TEST_CASE_TEMPLATE("data: a frozen process ends its streams at the deadline", Way, CAIRN_WAYS) { check_death<Way>(true); }

TEST_CASE_TEMPLATE("data: a slow peer is not taken for a frozen one", Way, CAIRN_WAYS) {
  TransportConfig first = Way::config(0), second = Way::config(1);
  first.silence = second.silence = kShort;
  TwoDataRanks ranks(std::move(first), std::move(second));
  const auto pass_deadline = [&] { CHECK(thrown_by([&] { ranks.one->receive(2, 1, 2 * kShort); }).code == ErrorCode::kDeadline); };
  ranks.open(1);  // the sender is slow
  auto received = std::async(std::launch::async, [&] { return receive_all(*ranks.receiver); });
  pass_deadline();
  ranks.sender->send("late");
  ranks.sender->finish();
  CHECK(received.get() == "late");
  ranks.open(2);  // the receiver is slow
  const std::string bytes = data_bytes(60 * kBlock, 1);
  auto sent = std::async(std::launch::async, [&] {
    ranks.sender->send(bytes);
    ranks.sender->finish();
  });
  pass_deadline();
  CHECK((receive_all(*ranks.receiver) == bytes));
  sent.get();
}

TEST_CASE("data: a rank with another secret, incarnation or number is refused") {
  const auto open = [](TransportConfig first, TransportConfig second, int asked = 1) {
    TwoDataRanks ranks(std::move(first), std::move(second));
    DataAddress to = ranks.one->address();
    to.rank = asked;
    return thrown_by([&] { ranks.zero->open(to, 7); });
  };
  for (const bool shared : {false, true}) {
    CHECK(open(data_config(0, kDataSecret, shared), data_config(1, "another secret, as long", shared)).code ==
          ErrorCode::kPermission);
    CHECK(open(data_config(0, "", shared), data_config(1, kDataSecret, shared)).code == ErrorCode::kUnavailable);
    CHECK(open(data_config(0, kDataSecret, shared), data_config(1, "", shared)).code != ErrorCode::kInternal);
    TransportConfig old = data_config(0, kDataSecret, shared);
    old.incarnation[0] = 'f';
    CHECK(open(std::move(old), data_config(1, kDataSecret, shared)).code == ErrorCode::kPermission);
    TransportConfig plain = data_config(0, "", shared);
    plain.incarnation[0] = 'f';
    CHECK(open(std::move(plain), data_config(1, "", shared)) ==
          Saying{ErrorCode::kPermission, "the peer says: this is another rank"});
    CHECK(open(data_config(0, "", shared), data_config(1, "", shared), 2).code == ErrorCode::kPermission);
  }
}

TEST_CASE("data: without a secret only loopback addresses are used") {
  TransportConfig open_to_all = data_config(0);
  open_to_all.host = "0.0.0.0";
  CHECK(thrown_by([&] { make_transport(std::move(open_to_all)); }).code == ErrorCode::kPrecondition);
  const auto transport = make_transport(data_config(0));
  CHECK(thrown_by([&] { transport->open({1, "198.51.100.7:4000", ""}, 7); }).code == ErrorCode::kPrecondition);
}

TEST_CASE_FIXTURE(TwoRanksOver<OverMemory>, "data: if memfd_create is refused, or memory for it, TCP is taken") {
  struct Row {
    unsigned call;
    unsigned error;
    const char* why;
  };
  for (const Row& row : {Row{SYS_memfd_create, EPERM, "memfd_create"}, Row{SYS_fallocate, ENOMEM, "allocate 4194304 bytes"}}) {
    CAPTURE(row.why);
    std::thread([&] {
      sock_filter code[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, 0},  // the number of the system call
                            {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, row.call},
                            {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | row.error},
                            {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
      const sock_fprog filter{4, code};
      REQUIRE(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
      REQUIRE(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
      open(row.call);
    }).join();
    CHECK(sender->why_tcp().find(row.why) != std::string::npos);
    sender->send("over TCP");
    auto received = std::async(std::launch::async, [&] { return receive_all(*receiver); });
    sender->finish();
    CHECK(received.get() == "over TCP");
  }
}

TEST_CASE_FIXTURE(TwoRanksOver<OverMemory>, "data: ranks in two mount namespaces of one network use shared memory") {
  bool has_own = false;
  std::thread([&] {
    has_own = ::unshare(CLONE_NEWNS) == 0;  // this thread only
    if (has_own) open();
  }).join();
  if (!has_own) return skip_case("no permission to make mount namespaces");
  CHECK(sender->why_tcp().empty());
  sender->send("in memory");
  auto received = std::async(std::launch::async, [&] { return receive_all(*receiver); });
  sender->finish();
  CHECK(received.get() == "in memory");
}

// Connects to a rank's Unix socket as a stranger.
Socket knock_locally(const DataAddress& address) {
  Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  address.local_name.copy(to.sun_path + 1, sizeof(to.sun_path) - 1);
  const auto length = offsetof(sockaddr_un, sun_path) + 1 + address.local_name.size();
  REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), static_cast<socklen_t>(length)) == 0);
  return socket;
}
bool is_closed_on(const Socket& socket) {
  pollfd question{socket.get(), POLLIN, 0};
  char byte = 0;
  return ::poll(&question, 1, static_cast<int>(std::chrono::milliseconds(kLong).count())) == 1 &&
         ::recv(socket.get(), &byte, 1, 0) <= 0;
}

TEST_CASE_FIXTURE(TwoRanksOver<OverMemory>, "data: shared memory is for one user") {
  bool is_other = false;
  std::thread([&] {
    is_other = ::syscall(SYS_setresuid, 65534, 65534, 65534) == 0;  // this thread only
    if (!is_other) return;
    open();
    CHECK(is_closed_on(knock_locally(one->address())));
  }).join();
  if (!is_other) return skip_case("no permission to become another user");
  CHECK(sender->why_tcp().find("another user") != std::string::npos);
}

TEST_CASE_FIXTURE(TwoRanksOver<OverMemory>, "data: shared memory that a peer could shrink is refused") {
  const auto answer_to = [&](const Socket& memory) {
    const Socket stranger = knock_locally(one->address());
    pass_descriptor(stranger.get(), memory);
    return is_closed_on(stranger);
  };
  const Socket unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(unsealed.get(), static_cast<off_t>(kSharedWindowBytes)) == 0);
  CHECK(answer_to(unsealed));
  CHECK(answer_to(make_shared_memory(kBlock)));
  CHECK(answer_to(make_shared_memory(kSharedWindowBytes + kBlock)));
  CHECK(answer_to(Socket(::open("/dev/null", O_RDONLY | O_CLOEXEC))));
  const TemporaryDirectory directory;  // seals are for memory: most file systems know none
  const Socket file(::open((directory.path() + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(::ftruncate(file.get(), static_cast<off_t>(kSharedWindowBytes)) == 0);
  CHECK(answer_to(file));
  const Socket silent = knock_locally(one->address());
  REQUIRE(::send(silent.get(), "x", 1, 0) == 1);  // without a descriptor
  CHECK(is_closed_on(silent));
  const Socket idle = knock_locally(one->address());
  pass_descriptor(idle.get(), make_shared_memory(kSharedWindowBytes));
  ::send(idle.get(), "....................", 20, MSG_NOSIGNAL);  // without a hello
  CHECK(is_closed_on(idle));
  open();
  CHECK(sender->why_tcp().empty());
}

TEST_CASE("data: heartbeats that a sender has not read leave room for the receiver's answers") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const Socket memory = make_shared_memory(kSharedWindowBytes);
  const auto end_of = [&](ConnectionSide side, int descriptor) {
    return std::make_unique<DataStream>(Socket(descriptor), plain_socket()(side, descriptor), SharedWindow(memory),
                                        std::chrono::milliseconds(1));
  };
  const auto sender = end_of(ConnectionSide::kOpener, ends[0]), receiver = end_of(ConnectionSide::kAcceptor, ends[1]);
  sender->set_peer(1, 7, true, "");
  receiver->set_peer(0, 7, false, "");
  receiver->send_frame(FrameKind::kAccepted, 7);
  sender->expect(FrameKind::kAccepted, 7);
  for (std::size_t slot = 0; slot < kSharedWindowBytes / kBlock; ++slot) sender->send("first");
  for (int i = 0; i < 10000; ++i) receiver->beat();
  std::string buffer(kBlock, '\0');
  CHECK(receiver->receive({buffer.data(), buffer.size()}) == 5);
  sender->send("next");  // in the slot that was returned
}

TEST_CASE_TEMPLATE("data: the number of a stream that failed before it was received is free again", Way, CAIRN_WAYS) {
  TwoRanksOver<Way> ranks;
  ranks.zero->open(ranks.one->address(), 7)->fail(ErrorCode::kNoSpace, "the disk is full");
  ranks.open(7);
  ranks.sender->send("again");
  std::string buffer(kBlock, '\0');
  CHECK(ranks.receiver->receive({buffer.data(), buffer.size()}) == 5);
}

TEST_CASE_TEMPLATE("data: a forked child that releases its copies does not end the streams", Way, CAIRN_WAYS) {
  TwoRanksOver<Way> ranks;
  ranks.open();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);  // ends it, should it wait for a thread that only the parent has
    ranks.sender = ranks.receiver = nullptr;
    ranks.zero = nullptr;
    ranks.one = nullptr;
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  ranks.sender->send("goes on");
  std::string buffer(kBlock, '\0');
  CHECK(ranks.receiver->receive({buffer.data(), buffer.size()}) == 7);
  ranks.open(8);
}

Socket knock(const std::string& address, const std::string& bytes) {
  Socket socket;
  auto progress = start_connect(resolve_endpoint(address), socket);
  while (progress.state == ConnectState::kPending) progress = check_connect(socket);
  REQUIRE(progress.state == ConnectState::kConnected);
  REQUIRE(::fcntl(socket.get(), F_SETFL, 0) == 0);  // blocking
  ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return socket;
}

TEST_CASE_TEMPLATE("data: strangers are refused", Way, OverTcp, OverTls) {
  TransportConfig second = Way::config(1);
  second.handshake_deadline = std::chrono::milliseconds(100);
  second.unauthenticated_connections_max = 2;
  TwoDataRanks ranks(Way::config(0), std::move(second));
  const std::string& at = ranks.one->address().address;
  std::string huge = "H";
  huge += std::string("\0\0\0\xff\xff\xff\xff", 7) + std::string(8, '\0') + std::string(100, 'x');
  CHECK(is_closed_on(knock(at, "")));  // after the deadline
  const auto is_refused = [&](const std::string& bytes) {
    const Socket stranger = knock(at, bytes);
    char answer[4096];
    while (::recv(stranger.get(), answer, sizeof(answer), 0) > 0) {
    }
    return true;  // it was closed on, maybe after an alert
  };
  CHECK(is_refused("GET / HTTP/1.1\r\n\r\n"));
  CHECK(is_refused(huge));
  CHECK(is_refused(std::string(100000, 'H')));
  const Socket first = knock(at, ""), next = knock(at, ""), last = knock(at, "");
  CHECK(is_closed_on(first));
  ranks.open();
  ranks.sender->send("still here");
  std::string buffer(kBlock, '\0');
  CHECK(ranks.receiver->receive({buffer.data(), buffer.size()}) == 10);
}

// Passes bytes between a sender and the rank at `to`, and changes one byte of those that it sends.
class Tamperer {
 public:
  Tamperer(DataAddress to, std::size_t at) : listener_(listen_on("127.0.0.1", 0)), to_(std::move(to)) {
    thread_ = std::thread([this, at] { pass(at); });
  }
  ~Tamperer() { thread_.join(); }
  DataAddress address() const { return {to_.rank, to_string(local_endpoint(listener_)), ""}; }

 private:
  void pass(std::size_t tampered) {
    pollfd question{listener_.get(), POLLIN, 0};
    ::poll(&question, 1, -1);
    const Socket from(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const Socket to = knock(to_.address, "");
    std::thread back([&] { copy(to, from, SIZE_MAX); });
    copy(from, to, tampered);
    back.join();
  }
  // Once one side has closed, nothing is passed in either direction.
  static void copy(const Socket& from, const Socket& to, std::size_t tampered) {
    std::string buffer(65536, '\0');
    std::size_t passed = 0;
    for (;;) {
      const auto received = ::recv(from.get(), buffer.data(), buffer.size(), 0);
      const auto count = static_cast<std::size_t>(std::max<ssize_t>(received, 0));
      if (passed <= tampered && tampered < passed + count) buffer[tampered - passed] ^= 1;
      passed += count;
      for (std::size_t at = 0; at < count;) {
        const auto sent = ::send(to.get(), buffer.data() + at, count - at, MSG_NOSIGNAL);
        if (sent <= 0) break;
        at += static_cast<std::size_t>(sent);
      }
      if (count > 0) continue;
      ::shutdown(from.get(), SHUT_RDWR);
      ::shutdown(to.get(), SHUT_RDWR);
      return;
    }
  }
  const Socket listener_;
  const DataAddress to_;
  std::thread thread_;
};

// Sends blocks until it fails, while the other side receives. Returns both errors.
std::pair<Thrown, Thrown> exchange_until_failure(TwoDataRanks& ranks) {
  auto receiving = std::async(std::launch::async, [&] { return thrown_by([&] { receive_all(*ranks.receiver); }); });
  const std::string piece = data_bytes(kBlock, 5);
  const Thrown sending = thrown_by([&] {
    for (;;) ranks.sender->send(piece);
  });
  return {sending, receiving.get()};
}

TEST_CASE_TEMPLATE("data: a block that changed on the way ends its stream", Way, OverTcp, OverTls) {
  TwoRanksOver<Way> ranks;
  Tamperer between(ranks.one->address(), 2 * kBlock);
  ranks.sender = ranks.zero->open(between.address(), 7);
  ranks.receiver = ranks.one->receive(0, 7, kLong);
  const auto [sending, receiving] = exchange_until_failure(ranks);
  CHECK(receiving == Saying{ErrorCode::kCorrupt, "stream 7 from rank 0 (TCP): "});
  if (std::is_same_v<Way, OverTcp>) CHECK(receiving.says("at offset 1048576 has a wrong checksum"));
  CHECK(sending.says("stream 7 to rank 1 (TCP): "));
  CHECK((sending.code == ErrorCode::kCorrupt || sending.code == ErrorCode::kUnavailable));
  CHECK(thrown_by([&] { receive_all(*ranks.receiver); }) == Saying{receiving.code, receiving.what});  // the same again
}

TEST_CASE_FIXTURE(TwoRanksOver<OverMemory>, "data: a block that changed in shared memory ends its stream") {
  open();
  sender->send(data_bytes(2 * kBlock, 5));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:cairn-data") == std::string::npos) continue;
    reinterpret_cast<char*>(std::stoull(line, nullptr, 16))[kBlock + 12345] ^= 1;
    break;  // the memory is mapped twice
  }
  const auto [sending, receiving] = exchange_until_failure(*this);
  CHECK(receiving == Saying{ErrorCode::kCorrupt, "stream 7 from rank 0 (shared memory): the block of 1.0 MiB at offset 1048576"});
  CHECK(sending == Saying{ErrorCode::kCorrupt, "stream 7 to rank 1 (shared memory): the peer says: "});
}

TEST_CASE_TEMPLATE("data: a transport that is destroyed ends running streams on both sides", Way, CAIRN_WAYS) {
  TwoRanksOver<Way> ranks;
  ranks.open();
  std::atomic<int> received{0};
  auto receiving = std::async(std::launch::async, [&] {
    std::string buffer(kBlock, '\0');
    return thrown_by([&] {
      for (;; ++received) ranks.receiver->receive({buffer.data(), buffer.size()});
    });
  });
  auto sending = std::async(std::launch::async, [&] {
    const std::string piece = data_bytes(kBlock, 5);
    return thrown_by([&] {
      for (;;) ranks.sender->send(piece);
    });
  });
  while (received < 3) std::this_thread::yield();
  ranks.zero = nullptr;
  CHECK(sending.get() == Saying{ErrorCode::kCancelled, "stream 7 to rank 1"});
  CHECK(receiving.get() == Saying{ErrorCode::kUnavailable, "stream 7 from rank 0"});
}

TEST_CASE_TEMPLATE("data: each side tells the other why it ends a stream", Way, CAIRN_WAYS) {
  TwoRanksOver<Way> ranks;
  std::string buffer(kBlock, '\0');
  const auto receive = [&] { ranks.receiver->receive({buffer.data(), buffer.size()}); };
  ranks.open(1);
  ranks.sender->send("some");
  receive();
  ranks.sender->fail(ErrorCode::kNoSpace, "the disk is full");
  CHECK(thrown_by(receive) == Saying{ErrorCode::kNoSpace, "the peer says: the disk is full"});
  CHECK(thrown_by([&] { ranks.sender->send("more"); }).code == ErrorCode::kNoSpace);
  ranks.open(2);
  ranks.sender = nullptr;
  CHECK(thrown_by(receive) == Saying{ErrorCode::kUnavailable, "the peer left the stream early"});
  ranks.open(3);
  ranks.receiver = nullptr;
  CHECK(thrown_by([&] { ranks.sender->finish(); }).code == ErrorCode::kUnavailable);
  ranks.open(4);
  CHECK(thrown_by([&] { ranks.zero->open(ranks.one->address(), 5), ranks.zero->open(ranks.one->address(), 5); }) ==
        Saying{ErrorCode::kInvalidArgument, "a stream of this number is open"});
}

TEST_CASE("data: a rank takes a bounded number of streams that it has not claimed") {
  TransportConfig second = data_config(1);
  second.unclaimed_streams_max = 2;
  TwoDataRanks ranks(data_config(0), std::move(second));
  const auto first = ranks.zero->open(ranks.one->address(), 1), next = ranks.zero->open(ranks.one->address(), 2);
  CHECK(thrown_by([&] { ranks.zero->open(ranks.one->address(), 3); }) == Saying{ErrorCode::kUnavailable, "has not claimed"});
  ranks.one->receive(0, 1, kLong);
  ranks.open(4);
  auto given_up = ranks.zero->open(ranks.one->address(), 5);
  given_up = nullptr;
  ranks.open(6);
}

TEST_CASE("data: addresses are printed and parsed") {
  const std::string text = "3 [::1]:4000 cairn-0f";
  CHECK(to_string(parse_data_address(text)) == text);
  CHECK(parse_data_address("0 10.0.0.1:65535 -").local_name.empty());
  for (const char* bad : {"", "3", "3 10.0.0.1:4000", "-1 10.0.0.1:4000 -", "3 10.0.0.1 -", "3 10.0.0.1:0 -", "03 10.0.0.1:4 -",
                          "3 10.0.0.1:4000 - ", " 3 10.0.0.1:4000 -", "99999999999 10.0.0.1:4 -", "3 10.0.0.1:4 -\nx"})
    CHECK_MESSAGE(thrown_by([&] { parse_data_address(bad); }).code == ErrorCode::kInvalidArgument, bad);
  CHECK(thrown_by([&] { parse_data_address("3 10.0.0.1:4000 " + std::string(65, 'a')); }).is_error);
  CHECK(thrown_by([&] { parse_data_address("3 " + std::string(1000, '1') + ":4000 -"); }).is_error);
}

TEST_CASE("data: ranks in two network namespaces use TCP") {
  const LeakCheck leaks;
  std::promise<pid_t> entered;
  std::promise<bool> linked;
  std::promise<DataAddress> address;
  const auto run = [](const std::string& command) { return std::system((command + " 2>/dev/null").c_str()) == 0; };
  const auto configure = [&run](const std::string& device, const std::string& own) {
    return run("ip addr add " + own + "/24 dev " + device) && run("ip link set " + device + " up");
  };
  std::thread receiver([&] {
    entered.set_value(::unshare(CLONE_NEWNET) == 0 ? static_cast<pid_t>(::syscall(SYS_gettid)) : -1);
    if (!linked.get_future().get() || !configure("cairn1", "198.51.100.1")) return address.set_value({});
    TransportConfig config = data_config(1, kDataSecret, true);
    config.host = "198.51.100.1";
    const auto transport = make_transport(std::move(config));
    address.set_value(transport->address());
    CHECK(receive_all(*transport->receive(0, 7, kLong)) == "far away");
  });
  bool is_run = false;
  std::thread([&] {
    const pid_t other = entered.get_future().get();
    const bool is_linked = other > 0 && ::unshare(CLONE_NEWNET) == 0 &&
                           run("ip link add cairn0 type veth peer name cairn1 netns " + std::to_string(other)) &&
                           configure("cairn0", "198.51.100.2");
    linked.set_value(is_linked);
    const DataAddress to = address.get_future().get();
    if (!is_linked || to.address.empty()) return;
    is_run = true;
    TransportConfig config = data_config(0, kDataSecret, true);
    config.host = "198.51.100.2";
    const auto transport = make_transport(std::move(config));
    const auto stream = transport->open(to, 7);
    CHECK(stream->why_tcp().find("network namespace") != std::string::npos);
    stream->send("far away");
    stream->finish();
  }).join();
  receiver.join();
  if (!is_run) skip_case("no permission to make network namespaces, or no veth or ip");
}

}  // namespace
}  // namespace cairn::testing
