#include <cairn/runtime/observation/metrics.hpp>

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <type_traits>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/settings.hpp>
#include <cairn/base/version.hpp>
#include <cairn/runtime/launch/launchers.hpp>
#include <cairn/runtime/observation/metrics_server.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

// Letters of a run's name in a file's name, and of the digest after them.
constexpr std::size_t kFileNameMax = 100;
constexpr std::size_t kDigestInName = 8;

std::string escaped(const std::string& value) {
  std::string text;
  for (const char letter : value) {
    // The format of Prometheus knows no other escapes.
    if (letter == '\\' || letter == '"') text += '\\';
    text += letter == '\n' ? "\\n" : std::string(1, letter);
  }
  return text;
}

std::string in_braces(const Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) text += (text.empty() ? "{" : ",") + name + "=\"" + escaped(value) + "\"";
  return text.empty() ? text : text + "}";
}

std::optional<int> natural_number(const std::string& text) {
  const auto value = parse_number<int>(text);
  // Ignored, because metrics must not end a job.
  return value && *value >= 0 ? value : std::nullopt;
}

// Returns the rank and local rank of this process, as its launcher tells them; nothing without a
// launcher. World::from_environment reports variables that leave a doubt. Metrics then use RANK and
// LOCAL_RANK.
std::pair<std::optional<int>, std::optional<int>> ranks_in_environment() {
  try {
    const auto task = find_task(variables_of_process());
    if (!task) return {};
    return {task->rank, task->local_rank};
  } catch (const Error&) {
    return {natural_number(environment_value("RANK")), natural_number(environment_value("LOCAL_RANK"))};
  }
}

double in_seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }
double since_1970(WallTime time) { return in_seconds(time.time_since_epoch()); }

struct Histogram {
  std::vector<std::uint64_t> counts;  // by bucket, not cumulative; the last one is +Inf
  double sum = 0;
  std::uint64_t count = 0;

  void observe(double value, const std::vector<double>& bounds) {
    counts.resize(bounds.size() + 1);
    ++counts[static_cast<std::size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin())];
    sum += value;
    ++count;
  }
};

constexpr const char* kSuccess = "success";
constexpr const char* kFailed = "failed";
constexpr const char* kCancelled = "cancelled";

// The metrics of the saves, or of the loads, of one rank.
struct RankMetrics {
  std::map<std::string, std::uint64_t> ended{{kSuccess, 0}, {kFailed, 0}, {kCancelled, 0}};  // by outcome
  std::multimap<std::uint64_t, double> starts;  // of running calls, since 1970, by CallEvent::call
  std::map<std::string, Histogram> seconds;        // by outcome
  std::map<std::string, Histogram> phase_seconds;  // by phase
  std::uint64_t bytes = 0;
  std::map<std::pair<std::string, std::string>, std::uint64_t> failures;  // by kind and phase
  std::map<std::uint64_t, std::pair<std::string, std::string>> told;      // first failure of a running call, by CallEvent::call
  std::uint64_t in_progress = 0;
  std::optional<double> last_success;
};

struct Exposition {
  void family(const std::string& name, const char* type, const std::string& help) {
    text += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  void sample(const std::string& name, const Labels& labels, const std::string& value) {
    text += name + in_braces(labels) + " " + value + "\n";
  }
  void histogram(const std::string& name, const Labels& labels, const Histogram& histogram, const std::vector<double>& bounds) {
    std::uint64_t all = 0;
    for (std::size_t i = 0; i <= bounds.size(); ++i) {
      all += histogram.counts[i];
      Labels with_bound = labels;
      with_bound.emplace_back("le", i < bounds.size() ? number_text(bounds[i]) : "+Inf");
      sample(name + "_bucket", with_bound, std::to_string(all));
    }
    sample(name + "_sum", labels, number_text(histogram.sum));
    sample(name + "_count", labels, std::to_string(histogram.count));
  }

  std::string text;
};

// Writes a temporary file beside it and renames that, so that a collector reads the old text or the
// new one.
void replace_file(const std::string& path, const std::string& text) {
  const std::string beside = path + ".new";
  std::FILE* const file = std::fopen(beside.c_str(), "we");
  if (file == nullptr) throw system_error("write metrics to", beside, errno);
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int error = errno;
  // Closing writes the buffered rest, so a full disk may show only here.
  const bool is_closed = std::fclose(file) == 0;
  if (is_written) error = errno;
  if (!is_written || !is_closed || std::rename(beside.c_str(), path.c_str()) != 0) {
    if (is_written && is_closed) error = errno;
    std::remove(beside.c_str());
    throw system_error("write metrics to", path, error);
  }
}

}  // namespace

struct PrometheusMetrics::Implementation {
  RankMetrics& of(const CallEvent& event) CAIRN_REQUIRES(mutex) { return ranks[event.operation][event.rank]; }

  std::string text() const {
    MutexLock lock(mutex);
    Exposition exposition;
    exposition.family("cairn_build_info", "gauge", "The version of Cairn in this process.");
    Labels build{{"version", kVersion}};
    if (own_rank) build.emplace_back("rank", std::to_string(*own_rank));  // tells ranks' files apart
    if (!options.run.empty()) build.emplace_back("run", options.run);
    exposition.sample("cairn_build_info", build, "1");
    exposition.family("cairn_running", "gauge", "Whether the rank has a world: 0 after the last one was shut down as planned.");
    for (const auto& [rank, count] : worlds) exposition.sample("cairn_running", labels_of(rank), count > 0 ? "1" : "0");
    for (const auto& [operation, by_rank] : ranks) write(exposition, to_string(operation), by_rank);
    return std::move(exposition.text);
  }

  Labels labels_of(int rank) const CAIRN_REQUIRES(mutex) {
    Labels labels{{"rank", std::to_string(rank)}};
    if (!options.run.empty()) labels.emplace_back("run", options.run);
    return labels;
  }

  void write(Exposition& exposition, const std::string& what, const std::map<int, RankMetrics>& by_rank) const
      CAIRN_REQUIRES(mutex) {
    // `samples_of` gets the metrics of a rank, and a function that adds a sample with more labels.
    const auto each = [&](const char* name, const char* type, const std::string& help, const auto& samples_of)
                          CAIRN_REQUIRES(mutex) {
                            const std::string full_name = "cairn_" + what + name;
                            exposition.family(full_name, type, help);
                            for (const auto& [rank, metrics] : by_rank)
                              samples_of(metrics, [&, labels = labels_of(rank)](const auto& value, const Labels& more = {}) {
                                Labels all = labels;
                                all.insert(all.end(), more.begin(), more.end());
                                if constexpr (std::is_same_v<decltype(value), const Histogram&>)
                                  exposition.histogram(full_name, all, value, options.seconds);
                                else
                                  exposition.sample(full_name, all, number_text(value));
                              });
                          };
    each("_seconds", "histogram", "From the call of a " + what + " until its end.", [](const auto& metrics, const auto& add) {
      for (const auto& [outcome, histogram] : metrics.seconds) add(histogram, {{"outcome", outcome}});
    });
    each("_phase_seconds", "histogram", "How long the rank was in each phase of a " + what + ".",
         [](const auto& metrics, const auto& add) {
           for (const auto& [phase, histogram] : metrics.phase_seconds) add(histogram, {{"phase", phase}});
         });
    each("_bytes_total", "counter", "Bytes of tensors that the rank has moved in " + what + "s that succeeded.",
         [](const auto& metrics, const auto& add) { add(metrics.bytes); });
    each("_failures_total", "counter", "Failed " + what + "s, by the first entry of their failure map.",
         [](const auto& metrics, const auto& add) {
           for (const auto& [first, count] : metrics.failures) add(count, {{"kind", first.first}, {"phase", first.second}});
         });
    each("s_total", "counter", "Ended " + what + "s, by outcome.", [](const auto& metrics, const auto& add) {
      for (const auto& [outcome, count] : metrics.ended) add(count, {{"outcome", outcome}});
    });
    each("_start_timestamp_seconds", "gauge", "When the oldest " + what + " in progress began, since 1970.",
         [](const auto& metrics, const auto& add) {
           const auto oldest = std::min_element(metrics.starts.begin(), metrics.starts.end(),
                                                [](const auto& a, const auto& b) { return a.second < b.second; });
           if (oldest != metrics.starts.end()) add(oldest->second);
         });
    each("s_in_progress", "gauge", "Calls of " + what + " that have not ended.",
         [](const auto& metrics, const auto& add) { add(metrics.in_progress); });
    each("_last_success_timestamp_seconds", "gauge", "When the last " + what + " that succeeded has ended, since 1970.",
         [](const auto& metrics, const auto& add) {
           if (metrics.last_success) add(*metrics.last_success);
         });
  }

  void publish() {
    // Under the lock, so that the last text written is the newest. `text` takes `mutex` inside, and
    // nothing takes the two in the other order.
    MutexLock lock(file_mutex);
    try {
      if (const std::string file = file_of_run(); !file.empty()) replace_file(file, text());
    } catch (const std::exception& error) {
      // Once, not after every save: the directory probably stays as it is.
      if (!std::exchange(is_file_complained_of, true))
        write_log(LogLevel::kWarning, -1, std::string("there are no metrics: ") + error.what());
    }
  }

  // The text of the last place in the run's name, which a reader knows, and a digest of the whole.
  std::string file_of_run() const {
    MutexLock lock(mutex);
    if (options.directory.empty() || options.run.empty()) return options.file;
    std::string name = options.run.substr(options.run.find_last_of('/') + 1).substr(0, kFileNameMax);
    for (char& letter : name)
      if (std::isalnum(static_cast<unsigned char>(letter)) == 0 && letter != '-' && letter != '.') letter = '_';
    if (name != options.run) name += "-" + to_hex(sha256(ByteSpan(options.run))).substr(0, kDigestInName);
    return options.directory + "/cairn-" + name + "-rank-" + std::to_string(own_rank.value_or(0)) + ".prom";
  }

  void count_world(int rank, int change) {
    {
      MutexLock lock(mutex);
      worlds[rank] += change;
    }
    publish();
  }

  PrometheusOptions options;  // the run's name is guarded by `mutex`
  const std::optional<int> own_rank = ranks_in_environment().first;
  mutable Mutex mutex;
  std::map<CallOperation, std::map<int, RankMetrics>> ranks CAIRN_GUARDED_BY(mutex);
  std::map<int, int> worlds CAIRN_GUARDED_BY(mutex);  // how many each rank has
  Mutex file_mutex;
  bool is_file_complained_of CAIRN_GUARDED_BY(file_mutex) = false;
  std::unique_ptr<MetricsServer> server;  // destroyed first, because it reads the other members
};

PrometheusMetrics::PrometheusMetrics(PrometheusOptions options) : implementation_(std::make_unique<Implementation>()) {
  const auto& bounds = options.seconds;
  if (std::adjacent_find(bounds.begin(), bounds.end(), [](double a, double b) { return !(a < b); }) != bounds.end())
    throw Error(ErrorCode::kInvalidArgument, "the bounds of PrometheusOptions::seconds must ascend");
  implementation_->options = std::move(options);
  // A counter that appears with its first failure hides that failure from increase().
  if (const auto rank = implementation_->own_rank)
    for (const auto operation : {CallOperation::kSave, CallOperation::kLoad}) implementation_->ranks[operation][*rank];
  // After the options and counters are set, because the server's thread reads them.
  if (!implementation_->options.address.empty())
    implementation_->server =
        std::make_unique<MetricsServer>(implementation_->options.address, [self = implementation_.get()] { return self->text(); });
  implementation_->publish();
}

PrometheusMetrics::~PrometheusMetrics() = default;

std::string PrometheusMetrics::text() const { return implementation_->text(); }
int PrometheusMetrics::port() const { return implementation_->server ? implementation_->server->port() : 0; }

void PrometheusMetrics::name_run(const std::string& url) {
  {
    MutexLock lock(implementation_->mutex);
    if (!implementation_->options.run.empty()) return;
    const auto path = local_path(url);
    implementation_->options.run = path ? std::filesystem::absolute(*path).lexically_normal().string() : url;
  }
  implementation_->publish();
}

void PrometheusMetrics::on_world_start(int rank) { implementation_->count_world(rank, 1); }
void PrometheusMetrics::on_world_end(int rank) { implementation_->count_world(rank, -1); }

void PrometheusMetrics::on_start(const CallEvent& event) {
  if (implementation_->options.named_by_first_save && event.operation == CallOperation::kSave)
    name_run(parent_url(event.checkpoint_id));
  {
    MutexLock lock(implementation_->mutex);
    RankMetrics& metrics = implementation_->of(event);
    ++metrics.in_progress;
    // By call, because several saves may be in flight.
    metrics.starts.emplace(event.call, since_1970(event.time));
  }
  implementation_->publish();
}

void PrometheusMetrics::on_failure(const CallFailed& failed) {
  MutexLock lock(implementation_->mutex);
  // The first failure of a call is its cause. Later ones often follow from it.
  implementation_->of(failed).told.try_emplace(failed.call, to_string(failed.kind), failed.phase ? to_string(*failed.phase) : "");
}

void PrometheusMetrics::on_end(const CallEnd& end) {
  {
    MutexLock lock(implementation_->mutex);
    RankMetrics& metrics = implementation_->of(end);
    const auto& bounds = implementation_->options.seconds;
    const char* const outcome = end.ok ? kSuccess : end.was_cancelled ? kCancelled : kFailed;
    metrics.seconds[outcome].observe(in_seconds(end.elapsed), bounds);
    ++metrics.ended[outcome];
    if (const auto start = metrics.starts.find(end.call); start != metrics.starts.end()) metrics.starts.erase(start);
    for (const auto& [phase, duration] : end.phases) metrics.phase_seconds[to_string(phase)].observe(in_seconds(duration), bounds);
    // The start may be missing: events are dropped when listeners are too slow.
    if (metrics.in_progress > 0) --metrics.in_progress;
    const auto first = metrics.told.find(end.call);
    if (!end.ok)
      ++metrics.failures[first != metrics.told.end() ? first->second : std::make_pair(std::string("internal"), std::string())];
    // The number of a call is never used again, so the entry would stay for ever.
    if (first != metrics.told.end()) metrics.told.erase(first);
    if (end.ok) {
      metrics.bytes += end.bytes;
      // The time of the event, not of this call: the queue of listeners may lag behind.
      metrics.last_success = since_1970(end.time);
    }
  }
  implementation_->publish();
}

std::shared_ptr<PrometheusMetrics> metrics_of_environment() {
  // Never destroyed: neither the exit of the process nor a forked child may wait for its thread.
  static const auto* const metrics = new std::shared_ptr<PrometheusMetrics>([]() -> std::shared_ptr<PrometheusMetrics> {
    PrometheusOptions options;
    try {
      if (const std::string directory = environment_value("CAIRN_METRICS_DIR"); !directory.empty()) options.directory = directory;
      options.run = environment_value("CAIRN_RUN");
      options.named_by_first_save = true;
      if (const std::string port = environment_value("CAIRN_METRICS_PORT"); !port.empty()) {
        const auto first = natural_number(port);
        if (!first || *first > 65535)
          throw Error(ErrorCode::kInvalidArgument, "CAIRN_METRICS_PORT must be a port number; \"" + port + "\" is none");
        options.address = "127.0.0.1:" + std::to_string(*first == 0 ? 0 : *first + ranks_in_environment().second.value_or(0));
      }
      if (options.directory.empty() && options.address.empty()) return nullptr;
      return std::make_shared<PrometheusMetrics>(options);
    } catch (const std::exception& error) {
      write_log(LogLevel::kWarning, -1, std::string("there are no metrics: ") + error.what());
      return nullptr;
    }
  }());
  return *metrics;
}

}  // namespace cairn
