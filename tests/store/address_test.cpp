// SPDX-License-Identifier: Apache-2.0
// How the URL of a database is read, and that no message shows its password.
#include <cstdlib>

#include <gtest/gtest.h>

#include <ejk/error.h>

#include "store/postgres/address.h"
#include "store/postgres/libpq.h"

namespace ejk::detail::postgres {
namespace {

class AddressTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!libpq().why_not.empty()) GTEST_SKIP() << libpq().why_not;
    for (const char* name : {"PGHOST", "PGHOSTADDR", "PGSERVICE", "PGPASSWORD", "PGSSLMODE"})
      ::unsetenv(name);
  }
  static std::string sslmode(const std::string& url) {
    for (const auto& [name, value] : read_address(url).parameters)
      if (name == "sslmode") return value;
    return "";
  }
};

TEST_F(AddressTest, ShowsWhereItIsWithoutThePassword) {
  EXPECT_EQ(read_address("postgresql://ann:s3cret@db.example:5433/tuned").where,
            "postgresql://ann@db.example:5433/tuned");
  EXPECT_EQ(read_address("postgres://db.example/tuned?user=ann&password=s3cret").where,
            "postgresql://ann@db.example/tuned");
  EXPECT_EQ(read_address("postgresql:///tuned?host=/run/pg").where, "postgresql:///run/pg/tuned");
}

TEST_F(AddressTest, ScrubsPasswordsHoweverTheyAreWritten) {
  const Address address = read_address("postgresql://ann:s%33cret%21@h/d?sslpassword=other");
  EXPECT_EQ(address.scrubbed("a s%33cret%21 b s3cret! c other\n"), "a *** b *** c ***");
  ::setenv("PGPASSWORD", "from-outside", 1);
  EXPECT_EQ(read_address("postgresql://h/d").scrubbed("from-outside"), "***");
  ::unsetenv("PGPASSWORD");
}

TEST_F(AddressTest, RefusesWhatIsNoUrlWithoutThePassword) {
  for (const std::string url :
       {"postgresql://ann:s3cret@h:1/d?nonsense=1", "postgresql://ann:s3cret@[h/d",
        "postgresql://ann:s3cret%zz@h/d", "postgresql://h/d?password=s3cret&nonsense=1",
        "postgresql://ann:s3@s3cret@h/d?nonsense=1", "mysql://ann:s3cret@h/d",
        "postgresql://ann:a?s3cret@h/d?nonsense=1", "postgresql://ann:a@b?s3cret@h/d",
        "postgresql://ann:a/b?s3cret@h/d"}) {
    try {
      read_address(url);
      ADD_FAILURE() << url;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_EQ(std::string(error.what()).find("s3cret"), std::string::npos) << error.what();
    }
  }
}

TEST_F(AddressTest, OtherMachinesMustShowACertificateUnlessTheUrlSaysElse) {
  for (const char* far : {"postgresql://db.example/d", "postgresql://10.0.0.1/d",
                          "postgresql://localhost,db.example/d", "postgresql:///d?service=tuned",
                          "postgresql:///d?hostaddr=10.0.0.1", "postgresql://localhost.evil/d",
                          "postgresql://127.evil.example/d", "postgresql://127.0.0.1.example/d"})
    EXPECT_EQ(sslmode(far), "verify-full") << far;
  for (const char* near :
       {"postgresql:///d", "postgresql://localhost/d", "postgresql://127.0.0.1/d",
        "postgresql://[::1]/d", "postgresql:///d?host=/run/postgresql",
        "postgresql://localhost,127.0.0.2/d"})
    EXPECT_EQ(sslmode(near), "") << near;
  EXPECT_EQ(sslmode("postgresql://db.example/d?sslmode=require"), "require");
  ::setenv("PGSSLMODE", "disable", 1);
  EXPECT_EQ(sslmode("postgresql://db.example/d"), "verify-full") << "only the URL weakens it";
  ::setenv("PGHOST", "db.example", 1);
  EXPECT_EQ(sslmode("postgresql:///d"), "verify-full");
  ::unsetenv("PGHOST");
  ::setenv("PGHOSTADDR", "10.0.0.1", 1);
  for (const char* named : {"postgresql:///d", "postgresql://localhost/d"})
    EXPECT_EQ(sslmode(named), "verify-full") << named << " leads elsewhere";
  EXPECT_EQ(sslmode("postgresql:///d?hostaddr=127.0.0.1"), "") << "the URL counts first";
  ::setenv("PGHOSTADDR", "127.0.0.1", 1);
  EXPECT_EQ(sslmode("postgresql:///d"), "");
  EXPECT_EQ(sslmode("postgresql://db.example/d"), "verify-full");
  ::unsetenv("PGHOSTADDR");
}

TEST_F(AddressTest, TheUrlSaysHowLongConnectingMayTake) {
  EXPECT_EQ(read_address("postgresql://h/d").connect_seconds, std::nullopt);
  EXPECT_EQ(read_address("postgresql://h/d?connect_timeout=20").connect_seconds, 20);
  for (const std::string wrong : {"0", "-1", "3601", "nan", "soon", "1s", "%201"}) {
    try {
      read_address("postgresql://ann:s3cret@h/d?connect_timeout=" + wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("expected seconds"), std::string::npos) << wrong;
      EXPECT_EQ(std::string(error.what()).find("s3cret"), std::string::npos) << error.what();
    }
  }
}

TEST(WithoutPassword, HidesItWithoutTheClientLibraryToo) {
  EXPECT_EQ(without_password("postgresql://ann:s3cret@h/d?password=two&a=b"),
            "postgresql://ann:***@h/d?password=***&a=b");
  EXPECT_EQ(without_password("postgresql://ann@h:5432/d"), "postgresql://ann@h:5432/d");
  EXPECT_EQ(without_password("postgresql://ann:s3?cret@db/tuned"), "postgresql://ann:***@db/tuned");
  EXPECT_EQ(without_password("postgresql://ann:s3?c=ret@db/tuned?password=two"),
            "postgresql://ann:***@db/tuned?password=***");
  for (const char* plain :
       {"postgresql:///d?host=/run/pg&user=ann@h", "postgresql://h:5432/d?user=a@b"})
    EXPECT_EQ(without_password(plain), plain);
}

}  // namespace
}  // namespace ejk::detail::postgres
