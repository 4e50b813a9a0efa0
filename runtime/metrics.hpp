// Saves and loads as metrics of Prometheus, in its text format (0.0.4), for a node exporter's textfile collector and over HTTP.
//
// Without a line of code, for a whole process and all worlds in it:
//   CAIRN_METRICS_DIR=DIR     writes DIR/cairn-rank-<RANK>.prom whenever a save or load begins or ends, whole or not at all
//   CAIRN_METRICS_PORT=9464   serves http://127.0.0.1:9464/metrics; ranks of one machine count on from there by LOCAL_RANK
// With code, where more is wanted:
//   auto metrics = std::make_shared<cairn::PrometheusMetrics>(options);
//   world_options.listeners.push_back(metrics);
//
// What there is, each with the label `rank`; the same with `load` for `save`:
//   cairn_save_seconds{outcome="success|failed|cancelled"}   histogram: from the call until its end, of asynchronous saves too
//   cairn_save_phase_seconds{phase="join|local_plan|…"}      histogram: how long this rank was in each phase
//   cairn_save_bytes_total                                   of tensors that this rank has written in saves that succeeded
//   cairn_save_failures_total{kind="lost|…",phase="…"}       saves that have failed, by the first entry of their failure map
//   cairn_saves_in_progress                                  now
//   cairn_save_last_success_timestamp_seconds                since 1970; no line before the first: alarm on its age
//   cairn_build_info{version="…"}                            1
// Names, labels and their meaning stay; there may be more.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cairn/runtime/call_listener.hpp>

namespace cairn {

struct PrometheusOptions {
  // Written anew whenever a call begins or ends, beside it and then renamed; its directory must be there. Empty: no file. What cannot be written is
  // logged once.
  std::string file;
  // "host:port" to be served at, port 0 for one that the system chooses; anybody who reaches it may read. Empty: nowhere.
  std::string address;
  // Upper bounds of the histograms, in seconds, ascending; there is always +Inf.
  std::vector<double> seconds{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800};
};

// Serves as many worlds and ranks as it is given to. Thread-safe.
class PrometheusMetrics final : public CallListener {
 public:
  // Throws kInvalidArgument for an address that is none or bounds that do not ascend, kUnavailable for an address that is not to be had.
  explicit PrometheusMetrics(PrometheusOptions options = {});
  ~PrometheusMetrics() override;
  PrometheusMetrics(const PrometheusMetrics&) = delete;
  PrometheusMetrics& operator=(const PrometheusMetrics&) = delete;

  std::string text() const;  // as it is served
  int port() const;          // that it is served at; 0: none

  void on_start(const CallEvent& event) override;
  void on_end(const CallEnd& end) override;
  void on_failure(const CallFailed& failed) override;

 private:
  struct Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

// For Cairn's own use: what the environment asks for, made when it is first asked for; null if nothing, or if it is not to be had, which is logged.
std::shared_ptr<PrometheusMetrics> metrics_of_environment();

}  // namespace cairn
