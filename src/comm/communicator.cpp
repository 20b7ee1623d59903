#include "kolo/communicator.hpp"

#include <utility>

namespace kolo {

Transfer::Transfer(Transfer&& other) noexcept
    : communicator_(std::exchange(other.communicator_, nullptr)), token_(other.token_) {}

Transfer& Transfer::operator=(Transfer&& other) noexcept {
  Transfer moved(std::move(other));
  std::swap(communicator_, moved.communicator_);
  std::swap(token_, moved.token_);
  return *this;
}

Transfer::~Transfer() {
  if (communicator_ != nullptr) communicator_->abandon(token_);
}

bool Transfer::ready() {
  if (communicator_ == nullptr) return true;
  Communicator* const communicator = std::exchange(communicator_, nullptr);
  if (communicator->test(token_)) return true;  // a test that throws has ended the transfer too
  communicator_ = communicator;
  return false;
}

}  // namespace kolo
