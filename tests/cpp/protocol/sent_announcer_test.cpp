// SentAnnouncer announces how far a root has got once it stops sending.
#include <gtest/gtest.h>

#include "protocol/announce.h"
#include "protocol/sent_announcer.h"

namespace mcast {
namespace {

TEST(SentAnnouncer, AFewTimesThenOnceByStreamThenSilence) {
  SentAnnouncer a;
  EXPECT_EQ(a.deadline(), kNever);
  a.on_sent(5, 0);
  EXPECT_EQ(a.due(0), Announce::kNo);
  for (int i = 0; i < SentAnnouncer::kMulticasts; i++) {
    EXPECT_EQ(a.due(a.deadline() - 1), Announce::kNo);
    EXPECT_EQ(a.due(a.deadline()), Announce::kMulticast);
  }
  EXPECT_EQ(a.due(a.deadline()), Announce::kStream);
  EXPECT_EQ(a.deadline(), kNever);
  EXPECT_EQ(a.due(3600 * kSecond), Announce::kNo);
  a.on_sent(6, 3600 * kSecond);
  EXPECT_EQ(a.due(a.deadline()), Announce::kMulticast);
  a.on_released(6);
  EXPECT_EQ(a.deadline(), kNever);
}

TEST(SentAnnouncer, SilentWhileItSends) {
  SentAnnouncer a;
  for (Sequence s = 1; s < 1000; s++) {
    a.on_sent(s, s * kMilli / 2);
    EXPECT_EQ(a.due(s * kMilli / 2 + kMilli / 4), Announce::kNo);
  }
}

}  // namespace
}  // namespace mcast
