// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a run agree on configs: a service of the program's own, and one question for
// all calls of a trace.
#include "bind.h"

#include "store/pins.h"

namespace ejk::python {

namespace {

// What Python raises is an error of the place; Ctrl-C and exit stay what they are.
template <class F>
auto asked(F&& f) {
  const Gil held;
  try {
    return f();
  } catch (nb::python_error& e) {
    if (!e.matches(PyExc_Exception)) throw;
    throw Error(ErrorKind::io, nb::cast<std::string>(nb::str(e.value())));
  }
}

// Its Python side has `where`, `add(number, text)` and `texts_from(number)` (ejk._ranks).
class ServicePins final : public detail::PinLog {
 public:
  explicit ServicePins(nb::object service)
      : where_(nb::cast<std::string>(service.attr("where"))), service_(service.release().ptr()) {}
  ~ServicePins() override {
    if (!nb::is_alive() || Gil::closed()) return;
    const Gil held;
    Py_DECREF(service_);
  }
  std::string where() const override { return where_; }
  bool trusted() const override { return true; }  // processes of this run alone reach it

 private:
  bool add(size_t number, const std::string& text) override {
    return asked([&] { return nb::cast<bool>(self().attr("add")(number, text)); });
  }
  std::vector<std::string> texts_from(size_t number) override {
    return asked(
        [&] { return nb::cast<std::vector<std::string>>(self().attr("texts_from")(number)); });
  }
  nb::handle self() const { return service_; }

  const std::string where_;
  PyObject* const service_;
};

// `find` gives the service, None if there is none for now.
void set_pin_service(nb::object find) {
  detail::set_own_pin_board([find = find.release().ptr()]() -> std::shared_ptr<detail::PinBoard> {
    return asked([&]() -> std::shared_ptr<detail::PinBoard> {
      nb::object service = nb::handle(find)();
      if (service.is_none()) return nullptr;
      return std::make_shared<ServicePins>(std::move(service));
    });
  });
}

// Calls the function, whose choices are only gathered, and pins them; how many there were.
size_t pin_choices_of(nb::handle function) {
  detail::GatheredPins gathered;
  function();
  return without_gil([&] { return gathered.pin(); });
}

}  // namespace

void bind_pins(nb::module_& m) {
  m.def("set_pin_service", &set_pin_service, nb::arg("find"));
  m.def(
      "pins_are_on", [] { return detail::pin_mode_of_launch() != detail::PinMode::off; },
      "Whether $EJKERNEL_PERSISTENT_CACHE_PIN asks for pins.");
  m.def("pin_choices_of", &pin_choices_of, nb::arg("function"), in_core());
}

}  // namespace ejk::python
