// Turns whatever an engine call throws into a status.
#ifndef BITNET_SYS_GUARDED_H
#define BITNET_SYS_GUARDED_H

#include "shim.h"

#include <cstdio>
#include <exception>

namespace {

void set_status(bn_status * st, int32_t code, const char * message) {
    st->code = code;
    std::snprintf(st->message, sizeof(st->message), "%s", message);
}

template <typename F> void guarded(bn_status * st, F && call) noexcept {
    st->code = BN_OK;
    st->message[0] = '\0';
    try {
        call();
    } catch (const std::exception & e) {
        set_status(st, BN_EXCEPTION, e.what());
    } catch (...) {
        set_status(st, BN_UNKNOWN, "something that is no std::exception was thrown");
    }
}

template <typename T> T * not_null(T * p, bn_status * st, const char * what) {
    if (p == nullptr && st->code == BN_OK) {
        set_status(st, BN_NULL, what);
    }
    return p;
}

} // namespace

#endif
