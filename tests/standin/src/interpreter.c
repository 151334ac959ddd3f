#define _GNU_SOURCE
#include "interpreter.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { WARP = 32 };
#define MOST_INSTRUCTIONS 2000000000ull

typedef enum { RUNS, AT_BARRIER, AT_EXCHANGE, ENDED } Status;

typedef struct {
    u64_t *registers;
    char *local;
    int at; /* the next instruction; of one that waits, that at which it does */
    Status status;
    unsigned x, y, z, index;
    unsigned char carry;
} Thread;

typedef struct {
    const Function *function;
    Dim grid, block, place; /* `place`: of the block in the grid */
    char *parameters, *shared;
    size_t dynamic_shared;
    Thread *threads;
    int count;
    u64_t instructions;
} Launch;

/* ---- values ---- */

static float to_float(u64_t bits) {
    uint32_t word = (uint32_t)bits;
    float value;
    return memcpy(&value, &word, 4), value;
}
static double to_double(u64_t bits) {
    double value;
    return memcpy(&value, &bits, 8), value;
}
static u64_t of_float(float value) {
    uint32_t word;
    return memcpy(&word, &value, 4), word;
}
static u64_t of_double(double value) {
    u64_t bits;
    return memcpy(&bits, &value, 8), bits;
}
static float half_to_float(u64_t bits) {
    uint16_t word = (uint16_t)bits;
    _Float16 value;
    return memcpy(&value, &word, 2), (float)value;
}
static u64_t half_of_float(float number) {
    _Float16 value = (_Float16)number;
    uint16_t word;
    return memcpy(&word, &value, 2), word;
}
static float brain_to_float(u64_t bits) { return to_float((bits & 0xffff) << 16); }
static u64_t brain_of_float(float value) {
    u64_t bits = of_float(value);
    if (isnan(value)) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static int is_float(Type type) { return type == F32 || type == F64 || type == F16 || type == BF16; }
static int is_pair(Type type) { return type == F16X2 || type == BF16X2; }
static int is_signed(Type type) { return type == S8 || type == S16 || type == S32 || type == S64; }

static double to_number(u64_t bits, Type type) {
    switch (type) {
        case F64: return to_double(bits);
        case F16: return half_to_float(bits);
        case BF16: return brain_to_float(bits);
        default: return to_float(bits);
    }
}
static u64_t of_number(double value, Type type) {
    switch (type) {
        case F64: return of_double(value);
        case F16: return half_of_float((float)value);
        case BF16: return brain_of_float((float)value);
        default: return of_float((float)value);
    }
}

/* The bits of a register as an integer of this type, extended to 64 bits. */
static u64_t to_integer(u64_t bits, Type type) {
    switch (type) {
        case PRED: return bits & 1;
        case B8: case U8: return (uint8_t)bits;
        case S8: return (u64_t)(int8_t)bits;
        case B16: case U16: case F16: case BF16: return (uint16_t)bits;
        case S16: return (u64_t)(int16_t)bits;
        case B32: case U32: case F32: case F16X2: case BF16X2: return (uint32_t)bits;
        case S32: return (u64_t)(int32_t)bits;
        default: return bits;
    }
}

static unsigned bits_of(Type type) { return 8 * (unsigned)width_of(type); }

static u64_t special(const Launch *l, const Thread *t, int which) {
    unsigned lane = t->index % WARP;
    switch ((SpecialRegister)which) {
        case TID_X: return t->x;
        case TID_Y: return t->y;
        case TID_Z: return t->z;
        case NTID_X: return l->block.x;
        case NTID_Y: return l->block.y;
        case NTID_Z: return l->block.z;
        case CTAID_X: return l->place.x;
        case CTAID_Y: return l->place.y;
        case CTAID_Z: return l->place.z;
        case NCTAID_X: return l->grid.x;
        case NCTAID_Y: return l->grid.y;
        case NCTAID_Z: return l->grid.z;
        case LANEID: return lane;
        case WARPID: return t->index / WARP;
        case LANEMASK_EQ: return 1u << lane;
        case LANEMASK_LT: return (1u << lane) - 1;
        case LANEMASK_LE: return (2ull << lane) - 1;
        case LANEMASK_GT: return 0xffffffffu & ~((2ull << lane) - 1);
        case LANEMASK_GE: return 0xffffffffu & ~((1ull << lane) - 1);
        case CLOCK: return l->instructions;
        case SMID: return 0;
        case NSMID: return 108;
        case DYNAMIC_SHARED: return l->dynamic_shared;
        case WARP_SIZE: return WARP;
    }
    return 0;
}

static inline u64_t get(const Launch *l, const Thread *t, const Operand *o) {
    u64_t value = o->kind == REGISTER    ? t->registers[o->index]
                  : o->kind == IMMEDIATE ? o->value
                                         : special(l, t, o->index);
    return o->negated ? !value : value;
}
static inline void set(Thread *t, const Operand *o, u64_t value) {
    if (o->kind == REGISTER) t->registers[o->index] = value;
}

/* ---- memory ---- */

static char *base_of(const Launch *l, const Thread *t, Space space) {
    switch (space) {
        case SHARED: return l->shared;
        case LOCAL: return t->local;
        case PARAM: return l->parameters;
        default: return NULL;
    }
}

static char *address(const Launch *l, const Thread *t, const Instruction *i) {
    u64_t at = get(l, t, &i->operand[0]);
    if (i->space == SHARED || i->space == LOCAL) at = (uint32_t)at;
    return (char *)((uintptr_t)base_of(l, t, i->space) + at + (u64_t)i->offset);
}

static u64_t load(const char *at, Type type) {
    u64_t value = 0;
    memcpy(&value, at, width_of(type));
    return to_integer(value, type);
}

static u64_t changed(const Instruction *i, u64_t old, u64_t a, u64_t b) {
    Type type = i->type;
    int less = is_signed(type) ? (int64_t)a < (int64_t)old : a < old;
    switch (i->mode) {
        case EXCH: return a;
        case CAS: return to_integer(old, type) == to_integer(a, type) ? b : old;
        case AND: return old & a;
        case OR: return old | a;
        case XOR: return old ^ a;
        case INC: return old >= a ? 0 : old + 1;
        case DEC: return old == 0 || old > a ? a : old - 1;
        case MIN: return is_float(type) ? of_number(fmin(to_number(old, type), to_number(a, type)), type) : less ? a : old;
        case MAX: return is_float(type) ? of_number(fmax(to_number(old, type), to_number(a, type)), type) : less ? old : a;
        default: break; /* ADD */
    }
    if (is_pair(type)) {
        Type half = type == F16X2 ? F16 : BF16;
        u64_t low = of_number(to_number(old, half) + to_number(a, half), half);
        return low | of_number(to_number(old >> 16, half) + to_number(a >> 16, half), half) << 16;
    }
    return is_float(type) ? of_number(to_number(old, type) + to_number(a, type), type) : old + a;
}

static void do_atomic(const Launch *l, Thread *t, const Instruction *i) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* other launches run at the same time */
    char *at = address(l, t, i);
    u64_t a = to_integer(get(l, t, &i->operand[1]), i->type);
    u64_t b = i->operands > 2 ? to_integer(get(l, t, &i->operand[2]), i->type) : 0;
    pthread_mutex_lock(&mutex);
    u64_t old = load(at, i->type), now = changed(i, old, a, b);
    memcpy(at, &now, width_of(i->type));
    pthread_mutex_unlock(&mutex);
    if (i->results) set(t, &i->result[0], old);
}

/* ---- arithmetic ---- */

static double limited(const Instruction *i, double value) {
    return i->saturate ? value != value ? 0 : fmin(1, fmax(0, value)) : value;
}

static u64_t compute_float(const Instruction *i, double a, double b, double c, Type type) {
    double value;
    /* In the precision of the type: sums of floats are rounded as floats. */
    switch (i->op) {
        case OP_ADD: value = type == F64 ? a + b : (float)a + (float)b; break;
        case OP_SUB: value = type == F64 ? a - b : (float)a - (float)b; break;
        case OP_MUL: value = type == F64 ? a * b : (float)a * (float)b; break;
        case OP_FMA: case OP_MAD: value = type == F64 ? fma(a, b, c) : fmaf((float)a, (float)b, (float)c); break;
        case OP_DIV: value = type == F64 ? a / b : (float)a / (float)b; break;
        case OP_ABS: value = fabs(a); break;
        case OP_NEG: value = -a; break;
        case OP_MIN: value = i->mode == NAN_MODE && (isnan(a) || isnan(b)) ? NAN : fmin(a, b); break;
        case OP_MAX: value = i->mode == NAN_MODE && (isnan(a) || isnan(b)) ? NAN : fmax(a, b); break;
        case OP_COPYSIGN: value = copysign(b, a); break;
        case OP_SQRT: value = sqrt(a); break;
        case OP_RSQRT: value = 1 / sqrt(a); break;
        case OP_RCP: value = 1 / a; break;
        case OP_EX2: value = exp2(a); break;
        case OP_LG2: value = log2(a); break;
        case OP_SIN: value = sin(a); break;
        case OP_COS: value = cos(a); break;
        case OP_TANH: value = tanh(a); break;
        default: value = NAN;
    }
    return of_number(limited(i, value), type);
}

static u64_t high_part(u64_t a, u64_t b, Type type) {
    unsigned width = bits_of(type);
    if (width < 64) return is_signed(type) ? (u64_t)((int64_t)a * (int64_t)b >> width) : a * b >> width;
    if (is_signed(type)) return (u64_t)((__int128)(int64_t)a * (int64_t)b >> 64);
    return (u64_t)((unsigned __int128)a * b >> 64);
}

static u64_t sum_with_carry(Thread *t, const Instruction *i, u64_t a, u64_t b) {
    unsigned width = bits_of(i->type);
    a = to_integer(a, width == 64 ? U64 : U32), b = to_integer(b, width == 64 ? U64 : U32);
    unsigned __int128 sum = (unsigned __int128)a + b + (i->carry_in ? t->carry : 0);
    if (i->carry_out) t->carry = (sum >> width & 1) != 0;
    return (u64_t)sum;
}

static u64_t difference_with_borrow(Thread *t, const Instruction *i, u64_t a, u64_t b) {
    unsigned width = bits_of(i->type);
    a = to_integer(a, width == 64 ? U64 : U32), b = to_integer(b, width == 64 ? U64 : U32);
    unsigned __int128 difference = (unsigned __int128)a - b - (i->carry_in ? t->carry : 0);
    if (i->carry_out) t->carry = (difference >> width & 1) != 0;
    return (u64_t)difference;
}

static u64_t extract(u64_t a, unsigned at, unsigned size, Type type) {
    unsigned width = bits_of(type);
    at &= 255, size &= 255;
    if (!size) return 0;
    int sign = is_signed(type) && (a >> (at + size - 1 < width - 1 ? at + size - 1 : width - 1) & 1);
    u64_t field = at < width ? to_integer(a, width == 64 ? U64 : U32) >> at : 0;
    u64_t mask = size < 64 ? (1ull << size) - 1 : ~0ull;
    unsigned there = at < width ? width - at : 0;
    field &= mask;
    if (sign) field |= ~(there < 64 && there < size ? (1ull << there) - 1 : mask);
    return field;
}

static u64_t permuted(u64_t a, u64_t b, u64_t selector) {
    u64_t bytes = (uint32_t)a | (uint32_t)b * (1ull << 32), out = 0;
    for (int k = 0; k < 4; k++) {
        unsigned which = selector >> 4 * k & 15;
        uint8_t byte = (uint8_t)(bytes >> 8 * (which & 7));
        if (which & 8) byte = byte & 128 ? 255 : 0;
        out |= (u64_t)byte << 8 * k;
    }
    return out;
}

static u64_t compute_integer(Thread *t, const Instruction *i, u64_t a, u64_t b, u64_t c) {
    Type type = i->type;
    unsigned width = bits_of(type);
    int sign = is_signed(type);
    switch (i->op) {
        case OP_ADD: return i->carry_in || i->carry_out ? sum_with_carry(t, i, a, b) : a + b;
        case OP_SUB: return i->carry_in || i->carry_out ? difference_with_borrow(t, i, a, b) : a - b;
        case OP_MUL: return i->high ? high_part(a, b, type) : a * b;
        case OP_MAD: {
            u64_t product = i->high ? high_part(a, b, type) : a * b;
            return i->carry_in || i->carry_out ? sum_with_carry(t, i, product, c) : product + c;
        }
        case OP_DIV:
            if (!b) return ~0ull;
            return sign ? (b == ~0ull ? -a : (u64_t)((int64_t)a / (int64_t)b)) : a / b;
        case OP_REM:
            if (!b) return a;
            return sign ? (b == ~0ull ? 0 : (u64_t)((int64_t)a % (int64_t)b)) : a % b;
        case OP_MIN: return (sign ? (int64_t)a < (int64_t)b : a < b) ? a : b;
        case OP_MAX: return (sign ? (int64_t)a < (int64_t)b : a < b) ? b : a;
        case OP_ABS: return (int64_t)a < 0 ? -a : a;
        case OP_NEG: return -a;
        case OP_AND: return a & b;
        case OP_OR: return a | b;
        case OP_XOR: return a ^ b;
        case OP_NOT: return type == PRED ? !a : ~a;
        case OP_SHL: return (uint32_t)b >= width ? 0 : a << (uint32_t)b;
        case OP_SHR: {
            unsigned by = (uint32_t)b >= width ? width - !!sign : (uint32_t)b;
            return sign ? (u64_t)((int64_t)a >> by) : by >= 64 ? 0 : a >> by;
        }
        case OP_POPC: return (u64_t)__builtin_popcountll(a);
        case OP_CLZ: return a ? (u64_t)__builtin_clzll(a) - (64 - width) : width;
        case OP_BREV: {
            u64_t out = 0;
            for (unsigned k = 0; k < width; k++) out |= (a >> k & 1) << (width - 1 - k);
            return out;
        }
        case OP_BFE: return extract(a, (unsigned)b, (unsigned)c, type);
        case OP_PRMT: return permuted(a, b, c);
        case OP_SHF: {
            unsigned by = i->combine == CLAMP ? ((uint32_t)c > 32 ? 32 : (uint32_t)c) : (uint32_t)c & 31;
            u64_t both = (uint32_t)a | (u64_t)(uint32_t)b << 32;
            return i->mode == LEFT ? (both << by) >> 32 : both >> by;
        }
        default: return 0;
    }
}

static int compare(Mode mode, u64_t a, u64_t b, Type type) {
    if (is_float(type)) {
        double x = to_number(a, type), y = to_number(b, type);
        int unordered = isnan(x) || isnan(y);
        switch (mode) {
            case EQ: return x == y;
            case NE: return !unordered && x != y;
            case LT: return x < y;
            case LE: return x <= y;
            case GT: return x > y;
            case GE: return x >= y;
            case EQU: return unordered || x == y;
            case NEU: return unordered || x != y;
            case LTU: return unordered || x < y;
            case LEU: return unordered || x <= y;
            case GTU: return unordered || x > y;
            case GEU: return unordered || x >= y;
            case NUM: return !unordered;
            default: return unordered;
        }
    }
    a = to_integer(a, type), b = to_integer(b, type);
    int less = is_signed(type) ? (int64_t)a < (int64_t)b : a < b;
    switch (mode) {
        case EQ: return a == b;
        case NE: return a != b;
        case LT: case LO: return less;
        case LE: case LS: return less || a == b;
        case GT: case HI_THAN: return !less && a != b;
        default: return !less;
    }
}

static int combined(Mode mode, int one, int other) {
    switch (mode) {
        case AND: return one && other;
        case OR: return one || other;
        case XOR: return one != other;
        default: return one;
    }
}

static double rounded(Mode mode, double value) {
    switch (mode) {
        case RNI: return rint(value);
        case RZI: return trunc(value);
        case RMI: return floor(value);
        case RPI: return ceil(value);
        default: return value;
    }
}

/* As a card does: what does not fit becomes the nearest that does, no number becomes zero. */
static u64_t integer_of(double value, Type type) {
    unsigned width = bits_of(type);
    if (isnan(value)) return is_signed(type) || width < 64 ? 0 : 1ull << 63;
    double most = is_signed(type) ? ldexp(1, (int)width - 1) : ldexp(1, (int)width);
    if (is_signed(type)) {
        if (value >= most) return (1ull << (width - 1)) - 1;
        if (value < -most) return 1ull << (width - 1);
        return (u64_t)(int64_t)value;
    }
    if (value >= most) return width == 64 ? ~0ull : (1ull << width) - 1;
    return value <= 0 ? 0 : (u64_t)value;
}

static u64_t converted(const Launch *l, const Thread *t, const Instruction *i) {
    Type to = i->type, from = i->from;
    u64_t a = get(l, t, &i->operand[0]);
    if (is_pair(to)) { /* of two numbers; the first is the upper */
        Type half = to == F16X2 ? F16 : BF16;
        u64_t low = get(l, t, &i->operand[1]);
        return of_number(to_number(a, from), half) << 16 | of_number(to_number(low, from), half);
    }
    if (is_float(from)) {
        double value = to_number(a, from);
        if (is_float(to)) return of_number(limited(i, rounded(i->mode, value)), to);
        return integer_of(rounded(i->mode ? i->mode : RZI, value), to);
    }
    a = to_integer(a, from);
    if (is_float(to)) {
        if (to == F32) return of_float(is_signed(from) ? (float)(int64_t)a : (float)a);
        return of_number(is_signed(from) ? (double)(int64_t)a : (double)a, to);
    }
    if (i->saturate) {
        int64_t value = (int64_t)a, most = is_signed(to) ? (1ll << (bits_of(to) - 1)) - 1 : (1ll << bits_of(to)) - 1;
        int64_t least = is_signed(to) ? -most - 1 : 0;
        if (bits_of(to) < 64) return (u64_t)(value > most ? most : value < least ? least : value);
    }
    return to_integer(a, to);
}

static u64_t by_halves(const Instruction *i, u64_t a, u64_t b, u64_t c) {
    Type half = i->type == F16X2 ? F16 : BF16;
    u64_t out = 0;
    for (int k = 0; k < 32; k += 16)
        out |= compute_float(i, to_number(a >> k, half), to_number(b >> k, half), to_number(c >> k, half), half) << k;
    return out;
}

static void calculate(const Launch *l, Thread *t, const Instruction *i) {
    Type type = i->type;
    u64_t value[3] = {0};
    for (int k = 0; k < i->operands && k < 3; k++) value[k] = get(l, t, &i->operand[k]);
    if (is_float(type)) {
        double number[3];
        for (int k = 0; k < 3; k++) number[k] = to_number(value[k], type);
        set(t, &i->result[0], compute_float(i, number[0], number[1], number[2], type));
    } else if (is_pair(type)) {
        set(t, &i->result[0], by_halves(i, value[0], value[1], value[2]));
    } else {
        u64_t a = to_integer(value[0], type), b = to_integer(value[1], type);
        /* How far to shift is of 32 bits whatever the type; what is added to a wide product is wide. */
        if (i->op == OP_SHL || i->op == OP_SHR || i->op == OP_BFE) b = (uint32_t)value[1];
        set(t, &i->result[0], compute_integer(t, i, a, b, i->wide ? value[2] : to_integer(value[2], type)));
    }
}

static void move(const Launch *l, Thread *t, const Instruction *i) {
    unsigned width;
    if (i->results > 1) { /* one register into several */
        u64_t value = get(l, t, &i->operand[0]);
        width = bits_of(i->type) / (unsigned)i->results;
        for (int k = 0; k < i->results; k++) set(t, &i->result[k], value >> width * (unsigned)k & (~0ull >> (64 - width)));
    } else if (i->operands > 1) { /* several into one */
        u64_t value = 0;
        width = bits_of(i->type) / (unsigned)i->operands;
        for (int k = 0; k < i->operands; k++)
            value |= (get(l, t, &i->operand[k]) & (~0ull >> (64 - width))) << width * (unsigned)k;
        set(t, &i->result[0], value);
    } else set(t, &i->result[0], to_integer(get(l, t, &i->operand[0]), i->type));
}

/* ---- threads together ---- */

static int shuffled_from(const Instruction *i, unsigned lane, u64_t b, u64_t c, int *valid) {
    unsigned by = b & 31, clamp = c & 31, segment = c >> 8 & 31;
    int last = (int)((lane & segment) | (clamp & ~segment)), from;
    switch (i->mode) {
        case UP: from = (int)lane - (int)by, *valid = from >= last; break;
        case DOWN: from = (int)(lane + by), *valid = from <= last; break;
        case BFLY: from = (int)(lane ^ by), *valid = from <= last; break;
        default: from = (int)((lane & segment) | (by & ~segment)), *valid = from <= last;
    }
    return *valid ? from : (int)lane;
}

static u64_t reduced(const Instruction *i, u64_t a, u64_t b) {
    int less = is_signed(i->type) ? (int64_t)a < (int64_t)b : a < b;
    switch (i->mode) {
        case AND: return a & b;
        case OR: return a | b;
        case XOR: return a ^ b;
        case MIN: return less ? a : b;
        case MAX: return less ? b : a;
        default: return a + b;
    }
}

/* Exchange values between the threads of a warp that wait at the same instruction. */
static void exchange(const Launch *l, Thread *warp, unsigned who) {
    const Instruction *i = NULL;
    u64_t values[WARP] = {0}, votes = 0, all = 0;
    int first = 1;
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(who >> lane & 1)) continue;
        i = &l->function->code[warp[lane].at];
        values[lane] = get(l, &warp[lane], &i->operand[0]);
        if (i->op == OP_VOTE && (values[lane] & 1)) votes |= 1u << lane;
        if (i->op == OP_REDUX) {
            u64_t own = to_integer(values[lane], i->type);
            all = first ? own : reduced(i, all, own);
        }
        first = 0;
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(who >> lane & 1)) continue;
        Thread *t = &warp[lane];
        if (i->op == OP_SHFL) {
            int valid, from = shuffled_from(i, lane, get(l, t, &i->operand[1]), get(l, t, &i->operand[2]), &valid);
            u64_t value = who >> from & 1 ? values[from] : values[lane];
            set(t, &i->result[0], to_integer(value, i->type));
            if (i->results > 1) set(t, &i->result[1], (u64_t)valid);
        } else if (i->op == OP_VOTE) {
            int uniform = votes == 0 || votes == who;
            set(t, &i->result[0],
                i->mode == BALLOT ? votes : i->mode == ALL ? votes == who : i->mode == ANY ? votes != 0 : (u64_t)uniform);
        } else if (i->op == OP_REDUX) set(t, &i->result[0], all);
        t->at++;
        t->status = RUNS;
    }
}

static unsigned members(const Launch *l, Thread *t) {
    const Instruction *i = &l->function->code[t->at];
    return (unsigned)get(l, t, &i->operand[i->operands - 1]);
}

/* Let those threads of a warp go on that wait for nobody else at their instruction; how many. If
 * each waits for others, those that are furthest behind go on together. */
static int exchange_in_warp(Launch *l, Thread *warp, int size, int force) {
    unsigned alive = 0, done = 0;
    int furthest = -1;
    for (int lane = 0; lane < size; lane++) {
        if (warp[lane].status != ENDED) alive |= 1u << lane;
        if (warp[lane].status == AT_EXCHANGE && (furthest < 0 || warp[lane].at < warp[furthest].at)) furthest = lane;
    }
    for (int lane = 0; lane < size; lane++) {
        if (warp[lane].status != AT_EXCHANGE || (done >> lane & 1)) continue;
        unsigned wanted = members(l, &warp[lane]) & alive, here = 0;
        for (int k = 0; k < size; k++)
            if (warp[k].status == AT_EXCHANGE && warp[k].at == warp[lane].at && !(done >> k & 1)) here |= 1u << k;
        if ((wanted & ~here) && !(force && warp[lane].at == warp[furthest].at)) continue;
        unsigned who = wanted & ~here ? here : wanted | 1u << lane;
        exchange(l, warp, who);
        done |= who;
    }
    return __builtin_popcount(done);
}

static void pass_barrier(Launch *l) {
    u64_t all = 1, any = 0, number = 0;
    for (int k = 0; k < l->count; k++) {
        Thread *t = &l->threads[k];
        if (t->status != AT_BARRIER) continue;
        const Instruction *i = &l->function->code[t->at];
        u64_t own = i->results ? get(l, t, &i->operand[0]) & 1 : 0;
        all &= own, any |= own, number += own;
    }
    for (int k = 0; k < l->count; k++) {
        Thread *t = &l->threads[k];
        if (t->status != AT_BARRIER) continue;
        const Instruction *i = &l->function->code[t->at];
        if (i->results) set(t, &i->result[0], i->mode == AND ? all : i->mode == OR ? any : number);
        t->at++;
        t->status = RUNS;
    }
}

/* ---- one thread ---- */

static void run_thread(Launch *l, Thread *t);

/* A function that is called runs to its end at once: none that the compiler leaves as one waits. */
static void call(Launch *l, Thread *t, const Instruction *i) {
    const Function *f = i->callee;
    char *parameters = calloc(1, f->parameter_bytes + 16);
    Thread inner = *t;
    inner.registers = calloc((size_t)f->registers + 1, sizeof(u64_t));
    inner.local = calloc(1, f->local_bytes + 16);
    inner.at = 0;
    for (int k = 0; k < i->operands; k++) {
        const Parameter *p = &f->parameter[f->results + k];
        memcpy(parameters + p->offset, t->local + i->operand[k].value, p->size);
    }
    Launch within = *l;
    within.function = f;
    within.parameters = parameters;
    do {
        inner.status = RUNS;
        run_thread(&within, &inner);
    } while (inner.status != ENDED && ++inner.at);
    for (int k = 0; k < i->results && k < f->results; k++)
        memcpy(t->local + i->result[k].value, parameters + f->parameter[k].offset, f->parameter[k].size);
    l->instructions = within.instructions;
    free(inner.registers);
    free(inner.local);
    free(parameters);
}

static void run_thread(Launch *l, Thread *t) {
    const Instruction *code = l->function->code;
    int count = l->function->count;
    u64_t done = 0;
    while (t->at < count) {
        const Instruction *i = &code[t->at];
        done++;
        if (i->guard >= 0 && (t->registers[i->guard] & 1) == i->guard_negated) {
            t->at++;
            continue;
        }
        switch (i->op) {
            case OP_LD: {
                const char *at = address(l, t, i);
                for (int k = 0; k < i->results; k++)
                    set(t, &i->result[k], load(at + (size_t)k * width_of(i->type), i->type));
                break;
            }
            case OP_ST: {
                char *at = address(l, t, i);
                size_t width = width_of(i->type);
                for (int k = 1; k < i->operands; k++) {
                    u64_t value = get(l, t, &i->operand[k]);
                    memcpy(at + (size_t)(k - 1) * width, &value, width);
                }
                break;
            }
            case OP_MOV: move(l, t, i); break;
            case OP_CVT: set(t, &i->result[0], converted(l, t, i)); break;
            case OP_CVTA: {
                u64_t base = (u64_t)(uintptr_t)base_of(l, t, i->space), value = get(l, t, &i->operand[0]);
                set(t, &i->result[0], i->to_space ? value - base : value + base);
                break;
            }
            case OP_SETP: {
                u64_t a = get(l, t, &i->operand[0]), b = get(l, t, &i->operand[1]);
                int truth = compare(i->mode, a, b, i->type);
                int other = i->operands > 2 ? (int)get(l, t, &i->operand[2]) & 1 : 0;
                set(t, &i->result[0], (u64_t)combined(i->combine, truth, other));
                if (i->results > 1) set(t, &i->result[1], (u64_t)combined(i->combine, !truth, other));
                break;
            }
            case OP_SET: {
                u64_t a = get(l, t, &i->operand[0]), b = get(l, t, &i->operand[1]);
                int truth = compare(i->mode, a, b, i->from);
                set(t, &i->result[0], is_float(i->type) ? of_number(truth, i->type) : truth ? ~0ull : 0);
                break;
            }
            case OP_SELP:
                set(t, &i->result[0], get(l, t, &i->operand[get(l, t, &i->operand[2]) & 1 ? 0 : 1]));
                break;
            case OP_BFI: {
                u64_t a = get(l, t, &i->operand[0]), b = get(l, t, &i->operand[1]);
                unsigned at = get(l, t, &i->operand[2]) & 255, size = get(l, t, &i->operand[3]) & 255;
                u64_t mask = at > 63 ? 0 : (size < 64 ? (1ull << size) - 1 : ~0ull) << at;
                set(t, &i->result[0], (b & ~mask) | ((at > 63 ? 0 : a << at) & mask));
                break;
            }
            case OP_LOP3: {
                u64_t a = get(l, t, &i->operand[0]), b = get(l, t, &i->operand[1]), c = get(l, t, &i->operand[2]);
                u64_t table = get(l, t, &i->operand[3]), out = 0;
                for (int k = 0; k < 8; k++)
                    if (table >> k & 1) out |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
                set(t, &i->result[0], (uint32_t)out);
                break;
            }
            case OP_ATOM: do_atomic(l, t, i); break;
            case OP_CALL: call(l, t, i); break;
            case OP_ACTIVEMASK: set(t, &i->result[0], 1u << t->index % WARP); break;
            case OP_BRA: t->at = i->target; continue;
            case OP_RET: case OP_TRAP: t->at = count; continue;
            case OP_NOTHING: break;
            case OP_SHFL: case OP_VOTE: case OP_REDUX: case OP_SYNC_WARP:
                t->status = AT_EXCHANGE;
                l->instructions += done;
                return;
            case OP_BAR:
                t->status = AT_BARRIER;
                l->instructions += done;
                return;
            default: calculate(l, t, i);
        }
        t->at++;
        if (done > MOST_INSTRUCTIONS) break;
    }
    l->instructions += done;
    t->status = ENDED;
}

/* ---- blocks and grids ---- */

static void start_block(Launch *l) {
    size_t registers = (size_t)l->function->registers;
    memset(l->shared, 0, l->function->shared_bytes);
    for (int k = 0; k < l->count; k++) {
        Thread *t = &l->threads[k];
        unsigned index = (unsigned)k;
        t->at = 0, t->status = RUNS, t->carry = 0, t->index = index;
        t->x = index % l->block.x, t->y = index / l->block.x % l->block.y, t->z = index / l->block.x / l->block.y;
        memset(t->registers, 0, registers * sizeof(u64_t));
    }
}

static void run_block(Launch *l) {
    start_block(l);
    for (;;) {
        int waiting = 0, at_barrier = 0;
        for (int k = 0; k < l->count; k++) {
            if (l->threads[k].status == RUNS) run_thread(l, &l->threads[k]);
            waiting += l->threads[k].status == AT_EXCHANGE;
            at_barrier += l->threads[k].status == AT_BARRIER;
        }
        if (l->instructions > MOST_INSTRUCTIONS) return;
        if (waiting) {
            int passed = 0;
            for (int force = 0; force < 2 && !passed; force++)
                for (int k = 0; k < l->count; k += WARP)
                    passed += exchange_in_warp(l, &l->threads[k], l->count - k < WARP ? l->count - k : WARP, force);
        } else if (at_barrier) pass_barrier(l);
        else return;
    }
}

static char *map(size_t size) {
    char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) abort();
    return at;
}

int interpret(const Function *f, Dim grid, Dim block, void **arguments, size_t shared) {
    Launch l = {.function = f, .grid = grid, .block = block, .dynamic_shared = shared};
    l.count = (int)(block.x * block.y * block.z);
    size_t registers = (size_t)f->registers + 1, local = f->local_bytes + 16;
    size_t shared_size = DYNAMIC_START + shared + 4096;
    l.threads = calloc((size_t)l.count, sizeof(Thread));
    u64_t *slots = calloc((size_t)l.count * registers, sizeof *slots);
    char *locals = calloc((size_t)l.count, local);
    l.shared = map(shared_size);
    l.parameters = calloc(1, f->parameter_bytes + 16);
    for (int k = 0; k < f->parameters; k++)
        memcpy(l.parameters + f->parameter[k].offset, arguments[k], f->parameter[k].size);
    for (int k = 0; k < l.count; k++) {
        l.threads[k].registers = slots + (size_t)k * registers;
        l.threads[k].local = locals + (size_t)k * local;
    }
    for (l.place.z = 0; l.place.z < grid.z; l.place.z++)
        for (l.place.y = 0; l.place.y < grid.y; l.place.y++)
            for (l.place.x = 0; l.place.x < grid.x && l.instructions <= MOST_INSTRUCTIONS; l.place.x++) run_block(&l);
    munmap(l.shared, shared_size);
    free(l.parameters);
    free(locals);
    free(slots);
    free(l.threads);
    return l.instructions > MOST_INSTRUCTIONS ? -1 : 0;
}
