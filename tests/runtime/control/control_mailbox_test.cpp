#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "runtime/control/control_plane.hpp"
#include "support/errors.hpp"
#include "support/fake_world/fake_world.hpp"

namespace kolo::runtime::control_mailbox_test {

constexpr int kTag = 200;

WireMessage wake_up_request(std::uint64_t exchange) {
  return HeaderExchangeMessage{WakeUpRequest{exchange}};
}
WireMessage lost(std::string how) { return HeaderExchangeMessage{LostRank{0, std::move(how)}}; }

/// The `index`-th message of `rank`: most are small, some large.
WireMessage message_of(int rank, std::uint64_t index) {
  if (index % 10 == 7)
    return lost(std::string(40'000 + 100 * index, static_cast<char>('a' + rank)));
  return wake_up_request(index * 100 + static_cast<std::uint64_t>(rank));
}

struct Network {
  int size;
  test::FakeOptions options;
};

void PrintTo(const Network& network, std::ostream* out) {
  *out << "world" << network.size << "/delay" << network.options.longest_delay.count() << "us"
       << (network.options.rendezvous ? "/rendezvous" : "");
}

class ControlMailboxNetworkTest : public testing::TestWithParam<Network> {};

TEST_P(ControlMailboxNetworkTest, Messages_ArriveCompleteAndInOrder) {
  constexpr std::uint64_t kMessages = 60;
  const int size = GetParam().size;
  test::run_ranks(
      size,
      [&](test::FakeWorld& world) {
        const std::unique_ptr<Communicator> communicator = world.make_communicator();
        const int rank = communicator->rank();
        ControlMailbox mailbox(*communicator, kTag);
        std::vector<std::uint64_t> received(static_cast<std::size_t>(size));
        std::uint64_t received_in_all = 0;
        const auto poll = [&] {
          const auto mail = mailbox.poll();
          if (!mail) {
            std::this_thread::yield();
            return;
          }
          const auto& [from, message] = *mail;
          const std::uint64_t index = received.at(static_cast<std::size_t>(from))++;
          EXPECT_EQ(message, message_of(from, index)) << from << " to " << rank << ", " << index;
          ++received_in_all;
        };
        std::uint64_t bytes = 0;
        for (std::uint64_t i = 0; i < kMessages; ++i) {
          for (int to = 0; to < size; ++to) bytes += mailbox.send(to, message_of(rank, i));
          poll();
        }
        const std::uint64_t expected = kMessages * static_cast<std::uint64_t>(size);
        while (received_in_all < expected || !mailbox.is_idle()) poll();
        EXPECT_EQ(received_in_all, expected);
        EXPECT_EQ(bytes, communicator->bytes_sent());
      },
      GetParam().options);
}

test::FakeOptions options(int delay_us, bool rendezvous) {
  test::FakeOptions options;
  options.longest_delay = std::chrono::microseconds(delay_us);
  options.rendezvous = rendezvous;
  return options;
}

INSTANTIATE_TEST_SUITE_P(Networks, ControlMailboxNetworkTest,
                         testing::Values(Network{1, options(0, false)},
                                         Network{1, options(0, true)}, Network{2, options(0, true)},
                                         Network{4, options(300, false)},
                                         Network{4, options(300, true)}));

TEST(ControlMailboxFakeTest, OtherTags_AreLeftAlone) {
  test::run_ranks(1, [](test::FakeWorld& world) {
    const auto communicator = world.make_communicator();
    ControlMailbox mailbox(*communicator, kTag);
    ControlMailbox other(*communicator, kTag + 1);
    mailbox.send(0, wake_up_request(1));
    EXPECT_FALSE(other.poll());
    const auto mail = mailbox.poll();
    ASSERT_TRUE(mail);
    EXPECT_EQ(*mail, std::pair(0, wake_up_request(1)));
    EXPECT_FALSE(mailbox.poll());
  });
}

/// Rank 0 of four, with a network that the test controls. As MPI may, a send reads the sender's
/// memory only when it completes.
class ScriptedCommunicator final : public Communicator {
 public:
  struct Sent {
    int to;
    std::span<const std::byte> data;
    enum { UnderWay, Ready, Failing, Abandoned } state = UnderWay;

    WireMessage message() const { return decode({data.begin(), data.end()}); }
  };
  std::vector<Sent> sent;
  std::deque<std::pair<int, std::vector<std::byte>>> arrived;
  bool can_receive = true;
  std::string receive_error;
  std::span<std::byte> receive_buffer() const { return into_; }

  int rank() const override { return 0; }
  int size() const override { return 4; }
  Transfer send(std::span<const std::byte> data, int to, int) override {
    sent.push_back({to, data});
    return {*this, sent.size() - 1};
  }
  Transfer receive(std::span<std::byte> data, int, int) override {
    into_ = data;
    return {*this, kReceive};
  }
  std::optional<Envelope> probe(int) override {
    if (arrived.empty()) return std::nullopt;
    return Envelope{arrived.front().first, arrived.front().second.size()};
  }
  UnderWay give_up_receives() override { return {}; }

 private:
  static constexpr std::uint64_t kReceive = 1'000'000;

  bool test(std::uint64_t token) override {
    if (token != kReceive) {
      if (sent.at(token).state == Sent::Failing) throw BackendError("link down");
      return sent.at(token).state == Sent::Ready;
    }
    if (!can_receive) return false;
    const std::vector<std::byte> data = std::move(arrived.front().second);
    arrived.pop_front();
    if (!receive_error.empty()) throw BackendError(receive_error);
    std::memcpy(into_.data(), data.data(), data.size());
    return true;
  }
  void abandon(std::uint64_t token) noexcept override {
    if (token != kReceive) sent[token].state = Sent::Abandoned;
  }

  std::span<std::byte> into_;
};

class ControlMailboxTest : public testing::Test {
 protected:
  /// The text of the error that `mailbox_.poll()` throws.
  std::string poll_error() {
    return test::text_thrown_by<BackendError>([&] { mailbox_->poll(); });
  }

  ScriptedCommunicator network_;
  std::optional<ControlMailbox> mailbox_{std::in_place, network_, kTag};
};

TEST_F(ControlMailboxTest, SendBuffers_StayAsTheyAreUntilReady) {
  for (std::uint64_t i = 0; i < 20; ++i)
    mailbox_->send(static_cast<int>(i % 4), wake_up_request(i));
  for (std::size_t i = 0; i < 20; i += 2)
    network_.sent[i].state = ScriptedCommunicator::Sent::Ready;
  EXPECT_FALSE(mailbox_->poll());
  EXPECT_FALSE(mailbox_->is_idle());
  for (std::uint64_t i = 20; i < 40; ++i)
    mailbox_->send(1, wake_up_request(i));  // reuses free buffers
  for (std::size_t i = 1; i < 20; i += 2) EXPECT_EQ(network_.sent[i].message(), wake_up_request(i));
  for (std::size_t i = 20; i < 40; ++i) EXPECT_EQ(network_.sent[i].message(), wake_up_request(i));
  for (auto& sent : network_.sent) sent.state = ScriptedCommunicator::Sent::Ready;
  EXPECT_TRUE(mailbox_->is_idle());
}

TEST_F(ControlMailboxTest, FreeBuffer_IsReused) {
  mailbox_->send(1, wake_up_request(1));
  network_.sent[0].state = ScriptedCommunicator::Sent::Ready;
  EXPECT_TRUE(mailbox_->is_idle());
  mailbox_->send(2, wake_up_request(2));
  EXPECT_EQ(network_.sent[1].data.data(), network_.sent[0].data.data());
}

TEST_F(ControlMailboxTest, Destruction_KeepsBuffersOfSendsUnderWay) {
  mailbox_->send(1, wake_up_request(11));
  mailbox_->send(3, lost(std::string(10'000, 'x')));
  mailbox_.reset();
  for (const auto& sent : network_.sent)
    EXPECT_EQ(sent.state, ScriptedCommunicator::Sent::Abandoned);
  EXPECT_EQ(network_.sent[0].message(), wake_up_request(11));
  EXPECT_EQ(network_.sent[1].message(), lost(std::string(10'000, 'x')));
}

TEST_F(ControlMailboxTest, Destruction_KeepsTheBufferOfAReceiveUnderWay) {
  network_.arrived = {{2, encode(lost(std::string(300, 'x')))}};
  network_.can_receive = false;
  EXPECT_FALSE(mailbox_->poll());
  const std::span<std::byte> buffer = network_.receive_buffer();
  mailbox_.reset();
  std::ranges::fill(buffer, std::byte{1});  // AddressSanitizer reports it if it has been freed
  // Allocators reuse the memory freed last.
  const std::vector<std::byte> next(buffer.size());
  EXPECT_NE(next.data(), buffer.data());
}

TEST_F(ControlMailboxTest, FailedSend_NamesTheRankAndIsGivenUp) {
  mailbox_->send(1, wake_up_request(1));
  mailbox_->send(2, wake_up_request(2));
  network_.sent[1].state = ScriptedCommunicator::Sent::Failing;
  const std::string text = poll_error();
  test::expect_contains(text, "to rank 2");
  test::expect_contains(text, "link down");
  EXPECT_EQ(network_.sent[1].message(), wake_up_request(2)) << "the network may still read it";
  network_.sent[0].state = ScriptedCommunicator::Sent::Ready;
  EXPECT_TRUE(mailbox_->is_idle());
}

TEST_F(ControlMailboxTest, MessageThatIsNotAllHere_IsWaitedForWithoutBlocking) {
  network_.arrived = {{2, encode(wake_up_request(5))}, {1, encode(wake_up_request(6))}};
  network_.can_receive = false;
  EXPECT_FALSE(mailbox_->poll());
  EXPECT_FALSE(mailbox_->poll());
  network_.can_receive = true;
  EXPECT_EQ(mailbox_->poll(), std::pair(2, wake_up_request(5)));
  EXPECT_EQ(mailbox_->poll(), std::pair(1, wake_up_request(6)));
  EXPECT_FALSE(mailbox_->poll());
}

TEST_F(ControlMailboxTest, DamagedMessage_NamesTheSenderAndIsPassedOver) {
  network_.arrived = {{3, std::vector<std::byte>(20)}, {3, encode(wake_up_request(7))}};
  const std::string text = poll_error();
  test::expect_contains(text, "from rank 3");
  EXPECT_EQ(mailbox_->poll(), std::pair(3, wake_up_request(7)));
}

TEST_F(ControlMailboxTest, FailedReceive_NamesTheSenderAndIsGivenUp) {
  network_.arrived = {{1, encode(wake_up_request(8))}, {2, encode(wake_up_request(9))}};
  network_.receive_error = "link down";
  const std::string text = poll_error();
  test::expect_contains(text, "from rank 1");
  network_.receive_error.clear();
  EXPECT_EQ(mailbox_->poll(), std::pair(2, wake_up_request(9)));
}

}  // namespace kolo::runtime::control_mailbox_test
