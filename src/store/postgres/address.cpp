// SPDX-License-Identifier: Apache-2.0
#include "store/postgres/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include <ejk/error.h>

#include "base/env.h"
#include "store/postgres/libpq.h"

namespace ejk::detail::postgres {
namespace {

constexpr std::string_view hidden = "***";
constexpr double longest_connect_seconds = 3600;

// Where the query begins, npos if there is none. A password may contain '?': libpq reads it up to
// the first '@' before the path, and no name of a parameter contains one.
size_t query_in(std::string_view url) {
  const size_t scheme = url.find("://"), begin = scheme == url.npos ? 0 : scheme + 3;
  const size_t at = url.find('@', begin);
  size_t query = url.find('?', at < url.find('/', begin) ? at : begin);
  while (query != url.npos && url.find('@', query) < url.find('=', query))
    query = url.find('?', query + 1);
  return query;
}

// Of the password in "scheme://user:PASSWORD@host"; empty if there is none.
std::string_view password_in_authority(std::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme == url.npos) return {};
  const std::string_view rest = url.substr(0, query_in(url)).substr(scheme + 3);
  // libpq takes the first '@' before the path; who forgot to escape one means the last. Hide more.
  const size_t at = rest.rfind('@');
  if (at == rest.npos) return {};
  const size_t colon = rest.find(':');
  return colon < at ? rest.substr(colon + 1, at - colon - 1) : std::string_view();
}

// The values of "password=" and the like behind the '?'.
std::vector<std::string_view> passwords_in_query(std::string_view url) {
  std::vector<std::string_view> out;
  size_t at = query_in(url);
  while (at != url.npos) {
    const size_t end = std::min(url.find('&', at + 1), url.size());
    const std::string_view word = url.substr(at + 1, end - at - 1);
    const size_t equals = word.find('=');
    if (equals != word.npos && word.substr(0, equals).ends_with("password"))
      out.push_back(word.substr(equals + 1));
    at = end == url.size() ? url.npos : end;
  }
  return out;
}

std::vector<std::string> secrets_of(std::string_view url) {
  std::vector<std::string> out;
  if (const auto word = password_in_authority(url); !word.empty()) out.emplace_back(word);
  for (const auto word : passwords_in_query(url))
    if (!word.empty()) out.emplace_back(word);
  return out;
}

std::string hide(std::string text, const std::vector<std::string>& secrets) {
  for (const std::string& secret : secrets)
    for (size_t at = text.find(secret); at != text.npos; at = text.find(secret, at + hidden.size()))
      text.replace(at, secret.size(), hidden);
  return text;
}

// 127.evil.example is a name.
bool is_loopback(const std::string& host) {
  in_addr address{};
  return host.starts_with("127.") && ::inet_pton(AF_INET, host.c_str(), &address) == 1;
}

bool is_near(const std::string& host) {
  return host.empty() || host.starts_with('/') || host.starts_with('@') || host == "localhost" ||
         host == "::1" || is_loopback(host);
}

bool all_near(std::string_view hosts) {
  for (size_t begin = 0; begin <= hosts.size();) {
    const size_t end = std::min(hosts.find(',', begin), hosts.size());
    if (!is_near(std::string(hosts.substr(begin, end - begin)))) return false;
    begin = end + 1;
  }
  return true;
}

double seconds_of(const std::string& connect_timeout, const std::string& where) {
  double seconds = 0;
  const char* const end = connect_timeout.data() + connect_timeout.size();
  const auto [stop, error] = std::from_chars(connect_timeout.data(), end, seconds);
  if (error == std::errc() && stop == end && seconds > 0 && seconds <= longest_connect_seconds)
    return seconds;
  throw Error(ErrorKind::invalid_argument, "[" + where +
                                               "] got connect_timeout=" + connect_timeout +
                                               "; expected seconds, more than 0 and at most 3600");
}

}  // namespace

bool is_database_url(std::string_view address) {
  return address.starts_with("postgresql://") || address.starts_with("postgres://");
}

std::string without_password(std::string_view url) {
  return hide(std::string(url), secrets_of(url));
}

std::string Address::scrubbed(std::string text) const {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return hide(std::move(text), secrets);
}

Address read_address(const std::string& url) {
  const Libpq& pq = libpq();
  Address out;
  out.secrets = secrets_of(url);
  out.where = without_password(url);
  if (!is_database_url(url))
    throw Error(ErrorKind::invalid_argument, "got " + out.where +
                                                 "; expected the URL of a database: "
                                                 "postgresql://user@host/database");
  if (!pq.why_not.empty()) return out;
  char* error = nullptr;
  const std::unique_ptr<ConnectionOption, void (*)(ConnectionOption*)> options(
      pq.PQconninfoParse(url.c_str(), &error), pq.PQconninfoFree);
  if (!options) {
    std::string why = error == nullptr ? "out of memory" : error;
    if (error != nullptr) pq.PQfreemem(error);
    // It quotes what it takes for the host or the query, which may be a part of such a password.
    if (password_in_authority(url).find_first_of("@/?") != url.npos)
      why = "escape '@', '/' and '?' in its password as %40, %2F and %3F";
    throw Error(ErrorKind::invalid_argument,
                "got " + out.where + "; expected the URL of a database: " + out.scrubbed(why));
  }
  std::string user, host, address, port, database, service, sslmode, connect_timeout;
  for (const ConnectionOption* o = options.get(); o->keyword != nullptr; ++o) {
    if (o->value == nullptr) continue;
    const std::string name = o->keyword, value = o->value;
    out.parameters.emplace_back(name, value);
    if (name.ends_with("password") && !value.empty()) out.secrets.push_back(value);
    if (name == "user") user = value;
    if (name == "host") host = value;
    if (name == "hostaddr") address = value;
    if (name == "port") port = value;
    if (name == "dbname") database = value;
    if (name == "service") service = value;
    if (name == "sslmode") sslmode = value;
    if (name == "connect_timeout") connect_timeout = value;
  }
  if (const auto own = base::env("PGPASSWORD"); own && !own->empty()) out.secrets.push_back(*own);
  // The longest first: one may be a part of another.
  std::ranges::sort(out.secrets, std::ranges::greater(), &std::string::size);
  out.where = "postgresql://" + (user.empty() ? "" : user + "@") + (host.empty() ? address : host) +
              (port.empty() ? "" : ":" + port) + "/" + database +
              (service.empty() ? "" : "?service=" + service);
  if (!connect_timeout.empty()) out.connect_seconds = seconds_of(connect_timeout, out.where);
  // libpq connects to the address if there is one, whatever the host is called.
  if (address.empty()) address = base::env_or_empty("PGHOSTADDR");
  if (host.empty() && address.empty()) host = base::env_or_empty("PGHOST");
  const bool near = service.empty() && base::env_or_empty("PGSERVICE").empty() && all_near(host) &&
                    all_near(address);
  if (sslmode.empty() && !near) out.parameters.emplace_back("sslmode", "verify-full");
  return out;
}

}  // namespace ejk::detail::postgres
