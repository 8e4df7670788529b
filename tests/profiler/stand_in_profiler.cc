// A stand-in for what profilers bring: an NVTX injection library and a library of ROCTX, which write down the ranges that
// they are told of, one line each: "begin DOMAIN|NAME|BYTES" or "end DOMAIN", "wrong ..." for what a profiler would not
// take. tests/profiler/build-stand-in builds it; tests/cuda_driver.rs and tests/hip_driver.rs read what it wrote.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {

std::mutex turn;
std::string lines;
// Ranges of this thread that are open, by domain.
thread_local std::map<std::string, int> depth;

void note(const std::string& line) {
  std::lock_guard<std::mutex> guard(turn);
  lines += line + "\n";
}

int open_range(const std::string& domain, const char* name, const std::string& bytes) {
  note("begin " + domain + "|" + name + "|" + bytes);
  return depth[domain]++;
}

int close_range(const std::string& domain) {
  if (depth[domain] == 0) return note("wrong: an end of nothing in " + domain), -2;
  note("end " + domain);
  return --depth[domain];
}

// NVTX, as version 3 of NVIDIA's headers has it (nvtx3/nvtxDetail/nvtxTypes.h, nvtx3/nvToolsExt.h).
struct Attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  const char* message;
};
struct Callbacks {
  size_t bytes;
  int (*module_functions)(int module, void**** table, unsigned* size);
};
struct VersionInfo {
  size_t bytes;
  uint32_t version, reserved;
  void (*set_version)(uint32_t);
};

struct Domain {
  std::string name;
};
Domain no_domain{"none"};

Domain* create(const char* name) {
  note(std::string("domain ") + name);
  return new Domain{name};
}
int push(Domain* domain, const Attributes* a) {
  if (domain == nullptr) domain = &no_domain;
  if (a->version != 3 || a->size != sizeof(Attributes)) note("wrong: attributes of another version");
  if (a->message_type != 1 || a->message == nullptr) return note("wrong: no name"), -2;
  if (a->reserved != 0 || a->color_type != 0) note("wrong: fields that nobody set");
  return open_range(domain->name, a->message, a->payload_type == 1 ? std::to_string(a->payload) : "");
}
int pop(Domain* domain) { return close_range(domain == nullptr ? no_domain.name : domain->name); }

}  // namespace

extern "C" {

int InitializeInjectionNvtx2(const void* (*export_table)(uint32_t)) {
  const char* kind = std::getenv("STANDIN_PROFILER");
  if (kind != nullptr && std::strcmp(kind, "absent") == 0) return 0;
  const auto* version = static_cast<const VersionInfo*>(export_table(3));
  if (version == nullptr || version->bytes < sizeof(VersionInfo) || version->version != 3) return note("wrong: the version"), 0;
  version->set_version(3);
  const auto* callbacks = static_cast<const Callbacks*>(export_table(1));
  if (callbacks == nullptr || callbacks->bytes < sizeof(Callbacks)) return note("wrong: no tables"), 0;
  // Each module has its functions, and room for each of them.
  const unsigned sizes[] = {0, 16, 9, 15, 7, 16, 7};
  void*** tables[7] = {};
  for (int module = 1; module < 7; ++module) {
    unsigned size = 0;
    if (callbacks->module_functions(module, &tables[module], &size) == 0 || size < sizes[module])
      return note("wrong: module " + std::to_string(module)), 0;
    for (unsigned function = 1; function < size; ++function)
      if (tables[module][function] == nullptr) return note("wrong: a function without room"), 0;
  }
  if (callbacks->module_functions(7, &tables[0], nullptr) != 0) note("wrong: a module that there is not");
  if (kind != nullptr && std::strcmp(kind, "marks") == 0) return 1;
  void*** core2 = tables[5];
  *core2[4] = reinterpret_cast<void*>(push);
  *core2[5] = reinterpret_cast<void*>(pop);
  *core2[12] = reinterpret_cast<void*>(create);
  return 1;
}

int roctxRangePushA(const char* name) { return open_range("roctx", name, ""); }
int roctxRangePop() { return close_range("roctx"); }

// What was written down since the last time.
const char* profiler_lines() {
  static std::string told;
  std::lock_guard<std::mutex> guard(turn);
  told.swap(lines);
  lines.clear();
  return told.c_str();
}
}
