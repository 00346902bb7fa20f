// SPDX-License-Identifier: Apache-2.0
// The calls of PostgreSQL's client library that this library makes. It is found at run time and
// declared here, so that nothing of PostgreSQL is needed to build or to run without it.
#pragma once

#include <string>

namespace ejk::detail::postgres {

using Connection = struct ConnectionTag;  // PGconn
using Result = struct ResultTag;          // PGresult
using NoticeProcessor = void (*)(void* with, const char* message);

// PQconninfoOption
struct ConnectionOption {
  char *keyword, *environment, *compiled, *value, *label, *shown_as;
  int size;
};

// ConnStatusType, PostgresPollingStatusType, ExecStatusType, as far as anything is decided by them.
constexpr int connection_bad = 1;
constexpr int polling_failed = 0, polling_reading = 1, polling_writing = 2, polling_ok = 3;
constexpr int command_ok = 1, tuples_ok = 2, fatal_error = 7;
constexpr int errors_verbose = 2;  // PGVerbosity
constexpr int field_sqlstate = 'C', field_message = 'M';

// X(type, name, parameters)
#define EJK_LIBPQ_CALLS(X)                                                                       \
  X(Connection*, PQconnectStartParams,                                                           \
    (const char* const* keywords, const char* const* values, int expand_dbname))                 \
  X(int, PQconnectPoll, (Connection*))                                                           \
  X(int, PQstatus, (const Connection*))                                                          \
  X(int, PQsocket, (const Connection*))                                                          \
  X(char*, PQerrorMessage, (const Connection*))                                                  \
  X(void, PQfinish, (Connection*))                                                               \
  X(int, PQsetnonblocking, (Connection*, int on))                                                \
  X(int, PQsetErrorVerbosity, (Connection*, int verbosity))                                      \
  X(NoticeProcessor, PQsetNoticeProcessor, (Connection*, NoticeProcessor processor, void* with)) \
  X(int, PQsendQuery, (Connection*, const char* sql))                                            \
  X(int, PQsendQueryParams,                                                                      \
    (Connection*, const char* sql, int count, const unsigned* types, const char* const* values,  \
     const int* lengths, const int* formats, int result_format))                                 \
  X(int, PQflush, (Connection*))                                                                 \
  X(int, PQconsumeInput, (Connection*))                                                          \
  X(int, PQisBusy, (Connection*))                                                                \
  X(Result*, PQgetResult, (Connection*))                                                         \
  X(int, PQresultStatus, (const Result*))                                                        \
  X(char*, PQresultErrorField, (const Result*, int field))                                       \
  X(int, PQntuples, (const Result*))                                                             \
  X(int, PQnfields, (const Result*))                                                             \
  X(char*, PQgetvalue, (const Result*, int row, int column))                                     \
  X(int, PQgetlength, (const Result*, int row, int column))                                      \
  X(int, PQgetisnull, (const Result*, int row, int column))                                      \
  X(void, PQclear, (Result*))                                                                    \
  X(ConnectionOption*, PQconninfoParse, (const char* text, char** error))                        \
  X(void, PQconninfoFree, (ConnectionOption*))                                                   \
  X(void, PQfreemem, (void*))

struct Libpq {
#define EJK_LIBPQ_MEMBER(type, name, parameters) type(*name) parameters = nullptr;
  EJK_LIBPQ_CALLS(EJK_LIBPQ_MEMBER)
#undef EJK_LIBPQ_MEMBER
  std::string why_not;  // it cannot be used, and what to do; "" if it can
};

// That of this process, loaded on first use. $EJK_LIBPQ_LIBRARY names another file.
const Libpq& libpq();

}  // namespace ejk::detail::postgres
