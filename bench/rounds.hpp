// SPDX-License-Identifier: Apache-2.0
// Rounds: every round measures limit, subject and peers back to back, and a figure is the median over
// rounds of a ratio within one round, so that the host's drift cancels (method: README.md).
#pragma once
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

class Rounds {
 public:
  void add(const std::string& name, double ns) {
    if (!series_.count(name)) order_.push_back(name);
    series_[name].push_back(ns);
  }
  bool has(const std::string& name) const { return series_.count(name) != 0; }
  double min(const std::string& name) const { return *std::min_element(of(name).begin(), of(name).end()); }
  double median(const std::string& name) const { return median_of(of(name)); }
  // Median over rounds of above / below. Above 1: `below` is the faster one.
  double ratio(const std::string& above, const std::string& below) const {
    std::vector<double> values;
    for (std::size_t i = 0; i < std::min(of(above).size(), of(below).size()); ++i) {
      values.push_back(of(above)[i] / of(below)[i]);
    }
    return median_of(values);
  }
  // Median over rounds of (a + b) / below.
  double ratio_of_sum(const std::string& a, const std::string& b, const std::string& below) const {
    std::vector<double> values;
    for (std::size_t i = 0; i < of(below).size(); ++i) values.push_back((of(a)[i] + of(b)[i]) / of(below)[i]);
    return median_of(values);
  }
  const std::vector<std::string>& names() const { return order_; }

 private:
  static double median_of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }
  const std::vector<double>& of(const std::string& name) const { return series_.at(name); }

  std::map<std::string, std::vector<double>> series_;
  std::vector<std::string> order_;
};

// Collects figures; prints one line each for people, or one JSON object at the end.
class Report {
 public:
  explicit Report(bool json) : json_(json) {}
  ~Report() {
    if (!json_) return;
    std::printf("{");
    for (std::size_t i = 0; i < figures_.size(); ++i) {
      std::printf("%s\"%s\": %.4g", i ? ", " : "", figures_[i].first.c_str(), figures_[i].second);
    }
    std::printf("}\n");
  }
  template <class... Args>
  void line(const char* format, Args... args) {
    if (json_) return;
    std::printf(format, args...);
    std::fflush(stdout);
  }
  void figure(const std::string& name, double value) { figures_.emplace_back(name, value); }

 private:
  bool json_;
  std::vector<std::pair<std::string, double>> figures_;
};
