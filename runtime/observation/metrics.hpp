// Exports metrics of saves and loads in Prometheus' text format (0.0.4): to a file for the node
// exporter's textfile collector, and over HTTP.
//
// Without code, for a whole process and all its worlds:
//   CAIRN_METRICS_DIR=DIR     rewrites DIR/cairn-<run>-rank-<rank>.prom atomically whenever a save
//                             or load begins or ends, and when the world ends
//   CAIRN_METRICS_PORT=9464   serves http://127.0.0.1:<9464 + local rank>/metrics
//   CAIRN_RUN=NAME            the run's name, see below
// However the world was made, <rank> and <local rank> are the values that World::from_environment
// would use. Without a launcher both are 0. If the launcher sets no local rank, the local rank is
// the rank. If the launcher's variables are incomplete or contradict each other, <rank> and <local
// rank> are the values of RANK and LOCAL_RANK; each is 0 if its variable is missing or not a
// natural number.
//
// With code, for more control:
//   auto metrics = std::make_shared<cairn::PrometheusMetrics>(options);
//   world_options.listeners.push_back(metrics);
//
// The run tells jobs apart: it is a label, and part of the file's name. CAIRN_RUN names it, or else
// the first CheckpointManager of the process, or else the place that contains the first save: its
// absolute path or URL. Until it has a name, there is no label and no file. Ranks of one job have
// the same name if they see the run under the same path. A job that is started again for a run
// replaces the files of the earlier one.
//
// These are the metrics of saves, each with the labels `rank` and `run`. Loads have the same
// metrics, with `load` instead of `save` in the name:
//   cairn_save_seconds{outcome="success|failed|cancelled"}
//       histogram: the time from the call to the end of the save, also for asynchronous saves
//   cairn_save_phase_seconds{phase="join|local_plan|…"}
//       histogram: the time that this rank spent in each phase, waiting for others included; only
//       the coordinator's rank has `global_plan` and `finish`
//   cairn_save_bytes_total
//       tensor bytes that this rank wrote in successful saves
//   cairn_save_failures_total{kind="lost|…",phase="…"}
//       saves that failed or were cancelled; `kind` and `phase` are those of the first entry in
//       the failure map
//   cairn_saves_total{outcome="success|failed|cancelled"}
//       saves that ended
//   cairn_saves_in_progress
//       the number of saves in progress now
//   cairn_save_start_timestamp_seconds
//       seconds since 1970 when the oldest save in progress began; absent if there is none
//   cairn_save_last_success_timestamp_seconds
//       seconds since 1970 when the last successful save ended; absent until a save succeeds; use
//       it to alert if the last success is too old
//   cairn_running
//       1 while the rank has a world, 0 after its last world was shut down as planned; a rank that
//       was killed leaves its file with 1; there is none for loads
//   cairn_build_info{version="…"}
//       1
// If a launcher's variables give the rank of this process, cairn_saves_total and
// cairn_save_bytes_total of that rank exist from the start, with value 0. The names, labels and
// meanings are stable. Later versions may add metrics.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cairn/runtime/observation/call_listener.hpp>

namespace cairn {

struct PrometheusOptions {
  // The file to write. Whenever a call begins or ends, Cairn writes a temporary file in the same
  // directory and renames it to this name. The directory must exist. Empty: no file. Only the first
  // failed write is logged.
  std::string file;
  // Instead of `file`: the directory of a file that has the run's name in its own, as above.
  std::string directory;
  // The label `run`. Empty: none, until `name_run` is called.
  std::string run;
  // Whether the first save names the run, if nothing else has.
  bool named_by_first_save = false;
  // "host:port" to serve at. Port 0: the system chooses a free one. Anyone who can reach the port
  // may read. Empty: no server.
  std::string address;
  // Upper bounds of the histogram buckets, in seconds, ascending; +Inf is always added.
  std::vector<double> seconds{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800};
};

// May be the listener of any number of worlds and ranks. Thread-safe.
class PrometheusMetrics final : public CallListener {
 public:
  // Throws kInvalidArgument if the address is malformed or the bounds do not ascend. Throws
  // kUnavailable if the address cannot be bound.
  explicit PrometheusMetrics(PrometheusOptions options = {});
  ~PrometheusMetrics() override;

  // Names the run by the path or URL of its place, if it has no name yet.
  void name_run(const std::string& url);

  std::string text() const;  // the metrics, in the text format
  int port() const;          // the port of the server; 0: no server

  void on_world_start(int rank) override;
  void on_start(const CallEvent& event) override;
  void on_end(const CallEnd& end) override;
  void on_world_end(int rank) override;
  void on_failure(const CallFailed& failed) override;

 private:
  struct Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

// Returns the metrics that the environment asks for. Creates them at the first call. Returns null
// if the environment asks for none. If they cannot be created, logs the reason and returns null.
// For Cairn's own use.
std::shared_ptr<PrometheusMetrics> metrics_of_environment();

}  // namespace cairn
