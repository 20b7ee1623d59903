#include "gpt/report.hpp"

#include <iomanip>
#include <ostream>
#include <sstream>

#include <nlohmann/json.hpp>

namespace gpt {

void print(std::ostream& stream, const Report& report) {
  stream << std::fixed << std::setprecision(3)  //
         << "validation loss  " << report.validation_loss << " nats/byte on "
         << report.windows.starts.size() << " windows, of which " << report.windows.in_training
         << " occur in the training text\n"
         << "trigram entropy  " << report.trigram_entropy << '\n'
         << "bigram entropy   " << report.bigram_entropy << '\n'
         << "unigram entropy  " << report.unigram_entropy << '\n'
         << "training loss    " << report.losses.front() << " at first, " << report.train_loss
         << " at last\n"
         << std::setprecision(0)  //
         << "speed            " << report.tokens_per_second << " tokens/s on " << report.ranks
         << (report.ranks == 1 ? " rank, " : " ranks, ") << std::setprecision(1)
         << report.step_ms_median << " ms a step (median)\n"
         << std::setprecision(3)  //
         << "sent             " << report.bytes_sent_per_step / 1e6 << " MB a rank and step\n";
  if (report.different_ranks.empty()) {
    stream << "parameters       equal on all ranks, bit for bit (digest "
           << report.parameters_digest << ")\n";
    return;
  }
  stream << "error: the parameters differ from those of rank 0 on";
  for (const int rank : report.different_ranks) stream << ' ' << rank;
  stream << '\n';
}

std::string to_json(const Report& report) {
  const nlohmann::ordered_json json = {
      {"ranks", report.ranks},
      {"parameters", report.parameters},
      {"first_step", report.first_step},
      {"steps", report.steps},
      {"initial_loss", report.losses.front()},
      {"train_loss", report.train_loss},
      {"validation_windows", report.windows.starts.size()},
      {"validation_windows_in_training", report.windows.in_training},
      {"windows_left_out", report.windows.left_out},
      {"validation_loss", report.validation_loss},
      {"unigram_entropy", report.unigram_entropy},
      {"bigram_entropy", report.bigram_entropy},
      {"trigram_entropy", report.trigram_entropy},
      {"tokens_per_second", report.tokens_per_second},
      {"step_ms_median", report.step_ms_median},
      {"parameters_digest", report.parameters_digest},
      {"different_ranks", report.different_ranks},
      {"losses", report.losses},
      {"bytes_sent_per_step", report.bytes_sent_per_step},
      {"exchanges", report.metrics.exchanges},
      {"wake_up_requests", report.metrics.wake_up_requests},
      {"negotiations", report.metrics.negotiations},
  };
  return json.dump(2) + '\n';
}

std::string shortfall(const Report& report, double required_loss) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(3);
  if (report.windows.in_training > 0) {
    text << report.windows.in_training << " of " << report.windows.starts.size()
         << " windows of the held-out text occur in the training text";
  } else if (!(report.validation_loss <= required_loss)) {
    text << "the validation loss " << report.validation_loss << " is above the required "
         << required_loss;
  } else if (!(report.validation_loss < report.trigram_entropy)) {
    text << "the validation loss " << report.validation_loss << " is not below the trigram entropy "
         << report.trigram_entropy;
  }
  return text.str();
}

}  // namespace gpt
