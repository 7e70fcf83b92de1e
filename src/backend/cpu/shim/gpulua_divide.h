// Integer division that cannot fault.
//
// On a GPU, x / 0 and the smallest number / -1 have some value; on many processors they end the
// process. Which operands are integers only the compiler knows, so the token pass writes every
// a / b whose divisor is not a literal as a / gpulua_d / b, and a % b as a % gpulua_d % b:
// precedence and associativity are those of the operator itself, and overloads decide by type.
// a /= b becomes a /= gpulua_d /= b, which groups from the right.
#ifndef GPULUA_DIVIDE_H
#define GPULUA_DIVIDE_H

struct gpulua_divider {};
static constexpr gpulua_divider gpulua_d{};

template <class A> struct gpulua_dividend { A value; };
template <class B> struct gpulua_divisor { B value; };

template <bool Condition, class T = void> struct gpulua_enable_if {};
template <class T> struct gpulua_enable_if<true, T> { typedef T type; };

// Integers and what converts to them by promotion; not class types, not floating types.
template <class T> struct gpulua_remove_cv { typedef T type; };
template <class T> struct gpulua_remove_cv<const T> { typedef T type; };
template <class T> struct gpulua_remove_cv<volatile T> { typedef T type; };
template <class T> struct gpulua_remove_cv<const volatile T> { typedef T type; };
template <class T> struct gpulua_is_integer {
    static constexpr bool value = __is_enum(T);
};
#define GPULUA_X(T)                                                                                \
    template <> struct gpulua_is_integer<T> { static constexpr bool value = true; };
GPULUA_X(bool)
GPULUA_X(char) GPULUA_X(signed char) GPULUA_X(unsigned char) GPULUA_X(wchar_t)
GPULUA_X(char16_t) GPULUA_X(char32_t) GPULUA_X(short) GPULUA_X(unsigned short)
GPULUA_X(int) GPULUA_X(unsigned) GPULUA_X(long) GPULUA_X(unsigned long)
GPULUA_X(long long) GPULUA_X(unsigned long long) GPULUA_X(__int128) GPULUA_X(unsigned __int128)
#undef GPULUA_X

template <class T> GPULUA_INLINE constexpr T gpulua_quotient(T a, T b) {
    if constexpr (T(-1) < T(0)) {
        return b == T(0) ? T(-1) : b == T(-1) ? T(a == T(T(1) << (sizeof(T) * 8 - 1)) ? a : -a)
                                              : T(a / b);
    } else {
        return b == T(0) ? T(-1) : T(a / b);
    }
}
template <class T> GPULUA_INLINE constexpr T gpulua_remainder(T a, T b) {
    if constexpr (T(-1) < T(0)) {
        return b == T(0) ? a : b == T(-1) ? T(0) : T(a % b);
    } else {
        return b == T(0) ? a : T(a % b);
    }
}

template <class A> GPULUA_INLINE constexpr gpulua_dividend<A> operator/(A a, gpulua_divider) {
    return gpulua_dividend<A>{static_cast<A &&>(a)};
}
template <class A> GPULUA_INLINE constexpr gpulua_dividend<A> operator%(A a, gpulua_divider) {
    return gpulua_dividend<A>{static_cast<A &&>(a)};
}
template <class A, class B>
GPULUA_INLINE constexpr auto operator/(gpulua_dividend<A> a, B b) -> decltype(a.value / b) {
    if constexpr (gpulua_is_integer<A>::value && gpulua_is_integer<B>::value) {
        typedef typename gpulua_remove_cv<decltype(a.value / b)>::type T;
        return gpulua_quotient<T>(static_cast<T>(a.value), static_cast<T>(b));
    } else {
        return a.value / b;
    }
}
template <class A, class B>
GPULUA_INLINE constexpr auto operator%(gpulua_dividend<A> a, B b) -> decltype(a.value % b) {
    if constexpr (gpulua_is_integer<A>::value && gpulua_is_integer<B>::value) {
        typedef typename gpulua_remove_cv<decltype(a.value % b)>::type T;
        return gpulua_remainder<T>(static_cast<T>(a.value), static_cast<T>(b));
    } else {
        return a.value % b;
    }
}

template <class B> GPULUA_INLINE constexpr gpulua_divisor<B> operator/=(gpulua_divider, B b) {
    return gpulua_divisor<B>{static_cast<B &&>(b)};
}
template <class B> GPULUA_INLINE constexpr gpulua_divisor<B> operator%=(gpulua_divider, B b) {
    return gpulua_divisor<B>{static_cast<B &&>(b)};
}
template <class A, class B>
GPULUA_INLINE constexpr auto operator/=(A &a, gpulua_divisor<B> b) -> decltype(a /= b.value) {
    if constexpr (gpulua_is_integer<typename gpulua_remove_cv<A>::type>::value &&
                  gpulua_is_integer<B>::value) {
        return a = static_cast<A>(a / gpulua_d / b.value);
    } else {
        return a /= b.value;
    }
}
template <class A, class B>
GPULUA_INLINE constexpr auto operator%=(A &a, gpulua_divisor<B> b) -> decltype(a %= b.value) {
    if constexpr (gpulua_is_integer<typename gpulua_remove_cv<A>::type>::value &&
                  gpulua_is_integer<B>::value) {
        return a = static_cast<A>(a % gpulua_d % b.value);
    } else {
        return a %= b.value;
    }
}

#endif
