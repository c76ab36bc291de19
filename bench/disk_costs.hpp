// SPDX-License-Identifier: Apache-2.0
// What moving bytes to a disk and back cost in every round, by name: speed, CPU, and ratios within one round.
#pragma once
#include <string>

#include "raw_disk.h"
#include "rounds.hpp"

class DiskCosts {
 public:
  void add(const std::string& name, const raw_disk::Cost& cost) {
    speed_.add(name, cost.ns_per_byte());
    cpu_.add(name, cost.cpu_per_gb());
  }
  void say(Report& report) const {
    for (const std::string& name : speed_.names()) {
      const double best = 1 / speed_.min(name), median = 1 / speed_.median(name), cpu = cpu_.median(name);
      report.line("%-24s %6.2f / %6.2f GB/s   %5.3f CPU-s per GB\n", name.c_str(), best, median, cpu);
      report.figure(name + "_gbs", median);
      report.figure(name + "_cpu", cpu);
    }
  }
  // Median over rounds of the speed of one over that of another.
  void compare(Report& report, const std::string& subject, const std::string& limit) const {
    const double share = speed_.ratio(limit, subject);
    report.line("%-24s %6.2f of %s\n", subject.c_str(), share, limit.c_str());
    report.figure(subject + "_of_" + limit, share);
  }
  // The same of the CPU's time: how much of that of another.
  void compare_cpu(Report& report, const std::string& subject, const std::string& other) const {
    const double share = cpu_.ratio(subject, other);
    report.line("%-24s %6.2f of the CPU time of %s, at %.2f of its speed\n", subject.c_str(), share,
                other.c_str(), speed_.ratio(other, subject));
    report.figure(subject + "_cpu_of_" + other, share);
  }

 private:
  Rounds speed_, cpu_;
};
