/* A kernel read from PTX, the assembly language in which a wheel carries its kernels for future cards.
 *
 * Only what TensorFlow, XLA and CUB use is understood. A register is a slot of 64 bits; whoever reads
 * it takes as many of them as the instruction's type has. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef uint64_t u64_t;

typedef enum {
    OP_ABS, OP_ACTIVEMASK, OP_ADD, OP_AND, OP_ATOM, OP_BAR, OP_BFE, OP_BFI, OP_BRA, OP_BREV, OP_CALL, OP_CLZ, OP_COPYSIGN,
    OP_COS, OP_CVT, OP_CVTA, OP_DIV, OP_EX2, OP_FMA, OP_LD, OP_LG2, OP_LOP3, OP_MAD, OP_MAX, OP_MIN, OP_MOV, OP_MUL,
    OP_NEG, OP_NOT, OP_NOTHING, OP_OR, OP_POPC, OP_PRMT, OP_RCP, OP_REDUX, OP_REM, OP_RET, OP_RSQRT, OP_SELP, OP_SET,
    OP_SETP, OP_SHF, OP_SHFL, OP_SHL, OP_SHR, OP_SIN, OP_SQRT, OP_ST, OP_SUB, OP_SYNC_WARP, OP_TANH, OP_TRAP, OP_VOTE, OP_XOR,
} Opcode;

typedef enum {
    NO_TYPE, PRED, B8, U8, S8, B16, U16, S16, F16, BF16, B32, U32, S32, F32, F16X2, BF16X2, B64, U64, S64, F64, B128,
} Type;

/* Where in a block's shared memory that begins whose size a launch says. */
enum { DYNAMIC_START = 1 << 20 };

typedef enum { GENERIC, GLOBAL, SHARED, LOCAL, PARAM } Space;

/* Comparisons, kinds of shuffles, votes, atomics, rounding to integers: what else an instruction says. */
typedef enum {
    NO_MODE, EQ, NE, LT, LE, GT, GE, LO, LS, HI_THAN, HS, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NAN_MODE,
    UP, DOWN, BFLY, IDX, ALL, ANY, UNI, BALLOT, EXCH, CAS, ADD, AND, OR, XOR, MIN, MAX, INC, DEC,
    RNI, RZI, RMI, RPI, LEFT, RIGHT, CLAMP, WRAP, SYNC, RED, POPC,
} Mode;

typedef enum { REGISTER, IMMEDIATE, SPECIAL, SINK } OperandKind;
typedef enum {
    TID_X, TID_Y, TID_Z, NTID_X, NTID_Y, NTID_Z, CTAID_X, CTAID_Y, CTAID_Z, NCTAID_X, NCTAID_Y, NCTAID_Z,
    LANEID, WARPID, LANEMASK_EQ, LANEMASK_LT, LANEMASK_LE, LANEMASK_GT, LANEMASK_GE, CLOCK, SMID, NSMID,
    DYNAMIC_SHARED, WARP_SIZE,
} SpecialRegister;

enum { MOST_OPERANDS = 8 };

typedef struct {
    unsigned char kind, negated;
    int index;   /* of a register, or which special one */
    u64_t value; /* of an immediate */
} Operand;

typedef struct {
    Opcode op;
    Type type, from; /* `from`: of the source, where that is another */
    Space space;
    Mode mode, combine; /* `combine`: how setp combines with another predicate */
    unsigned char wide, high, saturate, carry_out, carry_in, to_space;
    int guard; /* the predicate under which it is done; -1: always */
    unsigned char guard_negated;
    int results, operands;
    Operand result[4], operand[MOST_OPERANDS];
    long offset; /* of an address, which is the first operand */
    int target;  /* of a branch */
    struct Function *callee; /* of a call, whose operands are places in local memory */
} Instruction;

typedef struct {
    size_t offset, size;
} Parameter;

typedef struct Function {
    Instruction *code;
    int count, registers, parameters;
    int results; /* so many of the parameters, the first, are what a called function gives back */
    Parameter *parameter;
    size_t parameter_bytes, shared_bytes, local_bytes;
} Function;

/* The kernel of this name; NULL, with the reason noted, where it has something that is not understood. */
Function *read_function(const char *ptx, const char *name);

static inline size_t width_of(Type type) {
    switch (type) {
        case PRED: case B8: case U8: case S8: return 1;
        case B16: case U16: case S16: case F16: case BF16: return 2;
        case B32: case U32: case S32: case F32: case F16X2: case BF16X2: return 4;
        case B64: case U64: case S64: case F64: return 8;
        case B128: return 16;
        default: return 0;
    }
}
