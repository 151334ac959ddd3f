#define _GNU_SOURCE
#include "ptx.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

enum { NAME = 512, OPEN_LABEL = -2 };

typedef struct {
    char *name;
    enum { A_REGISTER, A_LABEL, AN_OFFSET } kind;
    u64_t value;
    Space space;
} Symbol;

typedef struct {
    const char *text, *at, *end;
    const char *name;
    Function *function;
    int room;
    Symbol *symbols; /* a table, by hash */
    int symbol_count, symbol_room;
    struct { int instruction; char *label; } *jumps;
    int jump_count, jump_room;
    Space found_in; /* where the last variable was that an operand named */
    jmp_buf failed;
} Reader;

static void fail(Reader *r, const char *why, const char *what) {
    note("cannot compute %.200s: %s %.100s", r->name, why, what);
    longjmp(r->failed, 1);
}

/* ---- names ---- */

static unsigned hash(const char *text) {
    unsigned value = 2166136261u;
    for (; *text; text++) value = (value ^ (unsigned char)*text) * 16777619u;
    return value;
}

static Symbol *place_of(Reader *r, const char *name) {
    unsigned at = hash(name) & (unsigned)(r->symbol_room - 1);
    while (r->symbols[at].name && strcmp(r->symbols[at].name, name)) at = (at + 1) & (unsigned)(r->symbol_room - 1);
    return &r->symbols[at];
}

static Symbol *find_symbol(Reader *r, const char *name) {
    Symbol *found = place_of(r, name);
    return found->name ? found : NULL;
}

static Symbol *add_symbol(Reader *r, const char *name, int kind, u64_t value, Space space) {
    if (2 * r->symbol_count >= r->symbol_room) {
        Symbol *old = r->symbols;
        int room = r->symbol_room;
        r->symbol_room = 2 * room;
        r->symbols = calloc((size_t)r->symbol_room, sizeof *old);
        for (int i = 0; i < room; i++)
            if (old[i].name) *place_of(r, old[i].name) = old[i];
        free(old);
    }
    Symbol *place = place_of(r, name);
    if (!place->name) r->symbol_count++;
    *place = (Symbol){place->name ? place->name : strdup(name), kind, value, space};
    return place;
}

static int new_register(Reader *r, const char *name) {
    return (int)add_symbol(r, name, A_REGISTER, (u64_t)r->function->registers++, GENERIC)->value;
}

/* ---- words ---- */

static void skip_space(Reader *r) {
    for (;;) {
        while (r->at < r->end && isspace((unsigned char)*r->at)) r->at++;
        if (r->at + 1 < r->end && r->at[0] == '/' && r->at[1] == '/') {
            while (r->at < r->end && *r->at != '\n') r->at++;
        } else if (r->at + 1 < r->end && r->at[0] == '/' && r->at[1] == '*') {
            r->at = strstr(r->at, "*/") + 2;
        } else return;
    }
}

static int is_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.'; }

static int accept(Reader *r, char c) {
    skip_space(r);
    if (r->at >= r->end || *r->at != c) return 0;
    return r->at++, 1;
}

static void expect(Reader *r, char c) {
    char what[2] = {c};
    if (!accept(r, c)) fail(r, "there should be a", what);
}

static void read_word(Reader *r, char out[NAME]) {
    skip_space(r);
    int size = 0;
    while (r->at < r->end && is_word(*r->at) && size < NAME - 1) out[size++] = *r->at++;
    if (size == NAME - 1) fail(r, "a name is too long:", out);
    out[size] = 0;
}

static void skip_statement(Reader *r) {
    while (r->at < r->end && *r->at != ';') r->at++;
    r->at++;
}

/* ---- operands ---- */

static const struct {
    const char *name;
    SpecialRegister which;
} specials[] = {
    {"%tid.x", TID_X}, {"%tid.y", TID_Y}, {"%tid.z", TID_Z}, {"%ntid.x", NTID_X}, {"%ntid.y", NTID_Y},
    {"%ntid.z", NTID_Z}, {"%ctaid.x", CTAID_X}, {"%ctaid.y", CTAID_Y}, {"%ctaid.z", CTAID_Z},
    {"%nctaid.x", NCTAID_X}, {"%nctaid.y", NCTAID_Y}, {"%nctaid.z", NCTAID_Z}, {"%laneid", LANEID},
    {"%warpid", WARPID}, {"%lanemask_eq", LANEMASK_EQ}, {"%lanemask_lt", LANEMASK_LT}, {"%lanemask_le", LANEMASK_LE},
    {"%lanemask_gt", LANEMASK_GT}, {"%lanemask_ge", LANEMASK_GE}, {"%clock", CLOCK}, {"%clock64", CLOCK},
    {"%smid", SMID}, {"%nsmid", NSMID}, {"%dynamic_smem_size", DYNAMIC_SHARED}, {"WARP_SZ", WARP_SIZE},
};

static u64_t declared_size(Reader *r, const char *name, const char *line, Space *space, char **values);

/* A variable of the module: shared memory gets a place in the block's, a constant one of its own. */
static Symbol *find_variable(Reader *r, const char *name) {
    size_t size = strlen(name);
    for (const char *at = r->text; (at = strstr(at, name)); at += size) {
        if ((at > r->text && is_word(at[-1])) || is_word(at[size])) continue;
        const char *line = at;
        while (line > r->text && line[-1] != '\n' && line[-1] != ';' && line[-1] != '{') line--;
        while (isspace((unsigned char)*line)) line++;
        if (*line != '.') continue;
        Space space;
        char *values;
        u64_t bytes = declared_size(r, at, line, &space, &values);
        if (space == SHARED) {
            Function *f = r->function;
            u64_t start = (f->shared_bytes + 127) / 128 * 128;
            /* What has no size is as large as the launch says, and shared by all such names. */
            if (!bytes) return add_symbol(r, name, AN_OFFSET, DYNAMIC_START, SHARED);
            f->shared_bytes = start + bytes;
            return add_symbol(r, name, AN_OFFSET, start, SHARED);
        }
        if (space == GLOBAL) return add_symbol(r, name, AN_OFFSET, (u64_t)(uintptr_t)values, GLOBAL);
    }
    return NULL;
}

static Function *read_called(const char *ptx, const char *name);

static Operand read_operand(Reader *r) {
    Operand out = {.kind = REGISTER};
    char word[NAME];
    skip_space(r);
    if (accept(r, '!')) out.negated = 1;
    int minus = accept(r, '-');
    read_word(r, word);
    if (!*word) fail(r, "an operand is missing at", r->at);
    if (isdigit((unsigned char)*word)) {
        out.kind = IMMEDIATE;
        if (word[0] == '0' && (word[1] == 'f' || word[1] == 'F' || word[1] == 'd' || word[1] == 'D'))
            out.value = strtoull(word + 2, NULL, 16);
        else if (strchr(word, '.') && word[1] != 'x') {
            double number = strtod(word, NULL);
            memcpy(&out.value, &number, sizeof number);
        } else out.value = strtoull(word, NULL, 0);
        if (minus) out.value = -out.value;
        return out;
    }
    if (!strcmp(word, "_")) return out.kind = SINK, out;
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
        if (!strcmp(word, specials[i].name)) return out.kind = SPECIAL, out.index = (int)specials[i].which, out;
    Symbol *found = find_symbol(r, word);
    if (!found && *word == '%') return out.index = new_register(r, word), out;
    if (!found) found = find_variable(r, word);
    if (!found) fail(r, "there is no", word);
    if (found->kind == A_REGISTER) return out.index = (int)found->value, out;
    out.kind = IMMEDIATE;
    out.value = found->value;
    r->found_in = found->space;
    if (accept(r, '+')) out.value += read_operand(r).value;
    return out;
}

static int read_list(Reader *r, Operand *out, int room) {
    int count = 0;
    if (!accept(r, '{')) return out[0] = read_operand(r), 1;
    do {
        if (count == room) fail(r, "a vector is too long at", r->at);
        out[count++] = read_operand(r);
    } while (accept(r, ','));
    expect(r, '}');
    return count;
}

static void read_address(Reader *r, Instruction *i) {
    expect(r, '[');
    r->found_in = i->space;
    i->operand[0] = read_operand(r);
    /* What is passed to a function is in the local memory of who calls it. */
    if (i->space == PARAM && r->found_in == LOCAL) i->space = LOCAL;
    i->operands = 1;
    if (accept(r, '+')) {
        int minus = accept(r, '-');
        long offset = (long)read_operand(r).value;
        i->offset = minus ? -offset : offset;
    } else if (accept(r, '-')) i->offset = -(long)read_operand(r).value;
    expect(r, ']');
}

/* ---- the words of an opcode ---- */

typedef struct {
    const char *word;
    int value;
} Entry;

static const Entry opcodes[] = {
    {"abs", OP_ABS}, {"activemask", OP_ACTIVEMASK}, {"add", OP_ADD}, {"addc", OP_ADD}, {"and", OP_AND},
    {"atom", OP_ATOM}, {"red", OP_ATOM}, {"bar", OP_BAR}, {"barrier", OP_BAR}, {"bfe", OP_BFE}, {"bfi", OP_BFI},
    {"bra", OP_BRA}, {"brev", OP_BREV}, {"call", OP_CALL}, {"clz", OP_CLZ}, {"copysign", OP_COPYSIGN},
    {"cos", OP_COS}, {"cvt", OP_CVT},
    {"cvta", OP_CVTA}, {"div", OP_DIV}, {"ex2", OP_EX2}, {"fma", OP_FMA}, {"ld", OP_LD}, {"ldu", OP_LD},
    {"lg2", OP_LG2}, {"lop3", OP_LOP3}, {"mad", OP_MAD}, {"madc", OP_MAD}, {"max", OP_MAX}, {"min", OP_MIN},
    {"mov", OP_MOV}, {"mul", OP_MUL}, {"neg", OP_NEG}, {"not", OP_NOT}, {"nanosleep", OP_NOTHING},
    {"membar", OP_NOTHING}, {"fence", OP_NOTHING}, {"prefetch", OP_NOTHING}, {"griddepcontrol", OP_NOTHING},
    {"discard", OP_NOTHING}, {"or", OP_OR}, {"popc", OP_POPC}, {"prmt", OP_PRMT}, {"rcp", OP_RCP},
    {"redux", OP_REDUX}, {"rem", OP_REM}, {"ret", OP_RET}, {"exit", OP_RET}, {"rsqrt", OP_RSQRT}, {"selp", OP_SELP},
    {"set", OP_SET}, {"setp", OP_SETP}, {"shf", OP_SHF}, {"shfl", OP_SHFL}, {"shl", OP_SHL}, {"shr", OP_SHR},
    {"sin", OP_SIN}, {"sqrt", OP_SQRT}, {"st", OP_ST}, {"sub", OP_SUB}, {"subc", OP_SUB}, {"tanh", OP_TANH},
    {"trap", OP_TRAP}, {"vote", OP_VOTE}, {"xor", OP_XOR}, {NULL, 0},
};
static const Entry types[] = {
    {"pred", PRED}, {"b8", B8}, {"u8", U8}, {"s8", S8}, {"b16", B16}, {"u16", U16}, {"s16", S16}, {"f16", F16},
    {"bf16", BF16}, {"b32", B32}, {"u32", U32}, {"s32", S32}, {"f32", F32}, {"f16x2", F16X2}, {"bf16x2", BF16X2},
    {"b64", B64}, {"u64", U64}, {"s64", S64}, {"f64", F64}, {"b128", B128}, {NULL, 0},
};
static const Entry modes[] = {
    {"eq", EQ}, {"ne", NE}, {"lt", LT}, {"le", LE}, {"gt", GT}, {"ge", GE}, {"ls", LS}, {"hs", HS}, {"equ", EQU},
    {"neu", NEU}, {"ltu", LTU}, {"leu", LEU}, {"gtu", GTU}, {"geu", GEU}, {"num", NUM}, {"nan", NAN_MODE}, {"NaN", NAN_MODE},
    {"up", UP},
    {"down", DOWN}, {"bfly", BFLY}, {"idx", IDX}, {"all", ALL}, {"any", ANY}, {"ballot", BALLOT}, {"exch", EXCH},
    {"cas", CAS}, {"add", ADD}, {"and", AND}, {"or", OR}, {"xor", XOR}, {"min", MIN}, {"max", MAX}, {"inc", INC},
    {"dec", DEC}, {"rni", RNI}, {"rzi", RZI}, {"rmi", RMI}, {"rpi", RPI}, {"l", LEFT}, {"r", RIGHT}, {NULL, 0},
};
static const Entry spaces[] = {
    {"global", GLOBAL}, {"const", GLOBAL}, {"shared", SHARED}, {"local", LOCAL}, {"param", PARAM}, {NULL, 0},
};
/* Said of rounding, caches and order: results are the same to us, or nearly. */
static const char *const ignored[] = {
    "rn", "rz", "rm", "rp", "rna", "ftz", "approx", "full", "nc", "ca", "cg", "cs", "cv", "lu", "wb", "wt", "volatile",
    "relaxed", "acquire", "release", "acq_rel", "gpu", "cta", "sys", "weak", "sync", "aligned", "gl", "sc", "uni",
    "v2", "v4", "v8", "cluster", "noftz", "L1", "L2", "mmio", "unified", "launch_dependents", "wait", "op_restrict",
    "L1::no_allocate", "L2::128B", "L2::64B", "L2::256B", "evict_last", "evict_first",
};

static int look_up(const Entry *table, const char *word, int *found) {
    for (; table->word; table++)
        if (!strcmp(table->word, word)) return *found = table->value, 1;
    return 0;
}

static void read_opcode(Reader *r, char *words, Instruction *i) {
    char *rest = words, *word = strsep(&rest, ".");
    int value;
    if (!look_up(opcodes, word, &value)) fail(r, "unknown instruction", word);
    i->op = (Opcode)value;
    i->carry_in = !strcmp(word, "addc") || !strcmp(word, "subc") || !strcmp(word, "madc");
    while ((word = strsep(&rest, "."))) {
        if (look_up(types, word, &value)) {
            if (i->type) i->from = (Type)value;
            else i->type = (Type)value;
        } else if (i->op == OP_SETP && (!strcmp(word, "lo") || !strcmp(word, "hi")))
            i->mode = *word == 'l' ? LO : HI_THAN;
        else if (i->mode && (i->op == OP_SETP || i->op == OP_SET) && look_up(modes, word, &value))
            i->combine = (Mode)value;
        else if (i->op != OP_NOTHING && look_up(modes, word, &value)) i->mode = (Mode)value;
        else if (look_up(spaces, word, &value)) i->space = (Space)value;
        else if (!strcmp(word, "shared::cta")) i->space = SHARED;
        else if (!strcmp(word, "warp")) i->op = OP_SYNC_WARP;
        else if (!strcmp(word, "to")) i->to_space = 1;
        else if (!strcmp(word, "wide")) i->wide = 1;
        else if (!strcmp(word, "hi")) i->high = 1;
        else if (!strcmp(word, "sat")) i->saturate = 1;
        else if (!strcmp(word, "cc")) i->carry_out = 1;
        else if (!strcmp(word, "popc")) i->mode = POPC;
        else if (!strcmp(word, "clamp") || !strcmp(word, "wrap")) i->combine = *word == 'c' ? CLAMP : WRAP;
        else if (!strcmp(word, "red")) i->combine = RED;
        else if (strcmp(word, "lo")) {
            size_t known = 0, count = sizeof ignored / sizeof *ignored;
            while (known < count && strcmp(ignored[known], word)) known++;
            if (known == count && i->op != OP_NOTHING) fail(r, "unknown word of an instruction:", word);
        }
    }
}

/* ---- statements ---- */

static void add_jump(Reader *r, const char *label) {
    if (r->jump_count == r->jump_room) {
        r->jump_room = r->jump_room ? 2 * r->jump_room : 64;
        r->jumps = realloc(r->jumps, (size_t)r->jump_room * sizeof *r->jumps);
    }
    r->jumps[r->jump_count].instruction = r->function->count;
    r->jumps[r->jump_count++].label = strdup(label);
}

/* call (result), function, (argument, argument); */
static void read_call(Reader *r, Instruction *i) {
    char name[NAME];
    if (accept(r, '(')) {
        i->result[i->results++] = read_operand(r);
        expect(r, ')');
        expect(r, ',');
    }
    read_word(r, name);
    if (*name == '%' || !(i->callee = read_called(r->text, name))) fail(r, "cannot call", name);
    if (!accept(r, ',')) return;
    expect(r, '(');
    while (!accept(r, ')')) {
        if (i->operands == MOST_OPERANDS) fail(r, "too many arguments of", name);
        i->operand[i->operands++] = read_operand(r);
        accept(r, ',');
    }
}

static void read_operands(Reader *r, Instruction *i) {
    char label[NAME];
    switch (i->op) {
        case OP_BRA:
            read_word(r, label);
            add_jump(r, label);
            return;
        case OP_RET: case OP_TRAP: return;
        case OP_CALL: return read_call(r, i);
        case OP_NOTHING: skip_statement(r), r->at--; return;
        case OP_LD:
            i->results = read_list(r, i->result, 4);
            expect(r, ',');
            return read_address(r, i);
        case OP_ST:
            read_address(r, i);
            expect(r, ',');
            i->operands += read_list(r, i->operand + 1, 4);
            return;
        case OP_ATOM:
            if (!accept(r, '[')) {
                i->result[0] = read_operand(r);
                i->results = 1;
                expect(r, ',');
            } else r->at--;
            read_address(r, i);
            break;
        case OP_BAR: case OP_SYNC_WARP: break;
        default:
            i->results = read_list(r, i->result, 4);
            if (accept(r, '|')) i->result[i->results++] = read_operand(r);
    }
    int none_before = !i->results && !i->operands;
    while (none_before || accept(r, ',')) {
        none_before = 0;
        if (i->operands == MOST_OPERANDS) fail(r, "too many operands at", r->at);
        i->operands += read_list(r, i->operand + i->operands, MOST_OPERANDS - i->operands);
    }
    if (i->op == OP_BAR && i->combine == RED) {
        /* bar.red p, barrier, q: the first of them is what it results in. */
        i->result[0] = i->operand[0];
        i->results = 1;
        i->operand[0] = i->operand[i->operands - 1];
    }
}

static void read_instruction(Reader *r, int guard, int guard_negated) {
    Function *f = r->function;
    if (f->count == r->room) {
        r->room = r->room ? 2 * r->room : 256;
        f->code = realloc(f->code, (size_t)r->room * sizeof *f->code);
    }
    Instruction i = {.guard = guard, .guard_negated = (unsigned char)guard_negated};
    char words[NAME];
    skip_space(r);
    int size = 0;
    while ((is_word(*r->at) || *r->at == ':') && size < NAME - 1) words[size++] = *r->at++;
    words[size] = 0;
    read_opcode(r, words, &i);
    read_operands(r, &i);
    expect(r, ';');
    f->code[f->count++] = i;
}

/* A number after this word of a declaration. */
static u64_t number_after(const char *line, const char *end, const char *word, u64_t otherwise) {
    const char *at = strstr(line, word);
    return at && at < end ? strtoull(at + strlen(word), NULL, 0) : otherwise;
}

static Type type_in(const char *line, const char *end) {
    for (const char *at = line; at < end; at++) {
        if (*at != '.') continue;
        char word[16] = {0};
        for (int i = 0; i < 15 && isalnum((unsigned char)at[1 + i]); i++) word[i] = at[1 + i];
        int value;
        if (look_up(types, word, &value)) return (Type)value;
    }
    return NO_TYPE;
}

/* Bytes of the variable that `line` declares, and for a global one a copy of its values. */
static u64_t declared_size(Reader *r, const char *name, const char *line, Space *space, char **values) {
    const char *end = line;
    while (*end && *end != ';') end++;
    const char *open = name;
    while (open < end && *open != '[' && *open != '=') open++;
    u64_t width = width_of(type_in(line, name));
    u64_t count = open < end && *open == '[' ? strtoull(open + 1, NULL, 0) : 1;
    *space = GENERIC;
    *values = NULL;
    if (!width) return 0;
    if (memmem(line, (size_t)(name - line), ".shared", 7)) *space = SHARED;
    else if (memmem(line, (size_t)(name - line), ".global", 7) || memmem(line, (size_t)(name - line), ".const", 6)) {
        *space = GLOBAL;
        *values = calloc(count + 1, width);
        const char *at = memchr(open, '=', (size_t)(end - open));
        for (u64_t i = 0; at && i < count && at < end; i++) {
            while (at < end && !isdigit((unsigned char)*at) && *at != '-') at++;
            if (at == end) break;
            if (at[0] == '0' && (at[1] == 'f' || at[1] == 'd')) fail(r, "floating-point values of", "a variable");
            long long value = strtoll(at, (char **)&at, 0);
            memcpy(*values + i * width, &value, width);
        }
    }
    return count * width;
}

static void read_directive(Reader *r) {
    char word[NAME];
    const char *line = r->at, *end = line;
    read_word(r, word);
    if (!strcmp(word, ".loc") || !strcmp(word, ".file")) {
        while (r->at < r->end && *r->at != '\n') r->at++;
        return;
    }
    while (end < r->end && *end != ';') end++;
    int is_shared = !strcmp(word, ".shared"), is_local = !strcmp(word, ".local") || !strcmp(word, ".param");
    if (!strcmp(word, ".reg")) {
        read_word(r, word); /* the type */
        do {
            read_word(r, word);
            if (*word != '%' && *word) new_register(r, word);
            if (accept(r, '<')) r->at = strchr(r->at, '>') + 1;
        } while (accept(r, ','));
    } else if (is_local || is_shared) {
        const char *open = line;
        while (open < end && *open != '[') open++;
        const char *name = open;
        while (name > line && is_word(name[-1])) name--;
        snprintf(word, NAME, "%.*s", (int)(open - name), name);
        u64_t count = open < end ? strtoull(open + 1, NULL, 0) : 1;
        size_t *bytes = is_local ? &r->function->local_bytes : &r->function->shared_bytes;
        u64_t start = (*bytes + 127) / 128 * 128;
        *bytes = start + width_of(type_in(line, open)) * count;
        add_symbol(r, word, AN_OFFSET, start, is_local ? LOCAL : SHARED);
    }
    r->at = end + 1;
}

static void read_body(Reader *r) {
    for (;;) {
        skip_space(r);
        if (r->at >= r->end) return;
        if (accept(r, '{') || accept(r, '}') || accept(r, ';')) continue;
        if (*r->at == '.') {
            read_directive(r);
            continue;
        }
        const char *start = r->at;
        char word[NAME];
        if (*start != '@') {
            read_word(r, word);
            if (accept(r, ':')) {
                if (r->at[0] != ':') {
                    add_symbol(r, word, A_LABEL, (u64_t)r->function->count, GENERIC);
                    continue;
                } /* else it is an instruction with a word such as L2::128B */
            }
            r->at = start;
        }
        int guard = -1, negated = 0;
        if (accept(r, '@')) {
            Operand predicate = read_operand(r);
            guard = predicate.index, negated = predicate.negated;
        }
        read_instruction(r, guard, negated);
    }
}

static void read_parameters(Reader *r) {
    Function *f = r->function;
    while (!accept(r, ')')) {
        const char *line = r->at, *end = line;
        while (*end != ',' && *end != ')') end++;
        const char *stop = end;
        while (stop > line && !is_word(stop[-1]) && stop[-1] != ']') stop--;
        const char *name = stop;
        u64_t count = 1;
        if (stop[-1] == ']') {
            while (*name != '[') name--;
            count = strtoull(name + 1, NULL, 0);
            stop = name;
        }
        while (name > line && is_word(name[-1])) name--;
        u64_t width = width_of(type_in(line, name)), align = number_after(line, name, ".align", width);
        if (memmem(line, (size_t)(name - line), ".ptr", 4)) align = width;
        if (align < width) align = width;
        if (!align) fail(r, "a parameter without a type:", line);
        f->parameter_bytes = (f->parameter_bytes + align - 1) / align * align;
        f->parameter = realloc(f->parameter, (size_t)(f->parameters + 1) * sizeof *f->parameter);
        f->parameter[f->parameters++] = (Parameter){f->parameter_bytes, count * width};
        char word[NAME];
        snprintf(word, NAME, "%.*s", (int)(stop - name), name);
        add_symbol(r, word, AN_OFFSET, f->parameter_bytes, PARAM);
        f->parameter_bytes += count * width;
        r->at = end;
        accept(r, ',');
    }
}

/* Where the kernel begins: after its name, at its parameters or its body. */
static const char *find_entry(const char *ptx, const char *name) {
    size_t size = strlen(name);
    for (const char *at = ptx; (at = strstr(at, ".entry")); at += 6) {
        const char *found = at + 6;
        while (isspace((unsigned char)*found)) found++;
        if (!strncmp(found, name, size) && !is_word(found[size])) return found + size;
    }
    return NULL;
}

static const char *end_of_body(const char *open) {
    int depth = 0;
    for (const char *at = open; *at; at++) {
        if (*at == '{') depth++;
        if (*at == '}' && !--depth) return at;
    }
    return NULL;
}

static void resolve_jumps(Reader *r) {
    for (int i = 0; i < r->jump_count; i++) {
        Symbol *label = find_symbol(r, r->jumps[i].label);
        if (!label || label->kind != A_LABEL) fail(r, "there is no label", r->jumps[i].label);
        r->function->code[r->jumps[i].instruction].target = (int)label->value;
    }
}

static void free_reader(Reader *r) {
    for (int i = 0; i < r->symbol_room; i++) free(r->symbols[i].name);
    for (int i = 0; i < r->jump_count; i++) free(r->jumps[i].label);
    free(r->symbols);
    free(r->jumps);
}

/* Where the function begins that has a body, at its results. */
static const char *find_called(const char *ptx, const char *name) {
    size_t size = strlen(name);
    for (const char *at = ptx; (at = strstr(at, ".func")); at += 5) {
        const char *found = at + 5, *results = found;
        while (isspace((unsigned char)*found)) found++;
        if (*found == '(') found = strchr(results = found, ')') + 1;
        while (isspace((unsigned char)*found)) found++;
        if (strncmp(found, name, size) || is_word(found[size])) continue;
        if (found[strcspn(found, ";{")] == '{') return results;
    }
    return NULL;
}

static Function *read_from(const char *ptx, const char *name, const char *begin, int is_called) {
    Reader r = {.text = ptx, .name = name, .symbol_room = 256};
    r.symbols = calloc(256, sizeof(Symbol));
    r.function = calloc(1, sizeof(Function));
    if (setjmp(r.failed)) return free_reader(&r), NULL;
    r.at = begin;
    if (!r.at) fail(&r, "it is not in", "its module");
    r.end = r.at + strlen(r.at);
    if (is_called) {
        char word[NAME];
        if (accept(&r, '(')) read_parameters(&r);
        r.function->results = r.function->parameters;
        read_word(&r, word);
    }
    if (accept(&r, '(')) read_parameters(&r);
    const char *open = strchr(r.at, '{');
    r.end = open ? end_of_body(open) : NULL;
    if (!r.end) fail(&r, "it has no", "end");
    r.at = open + 1;
    read_body(&r);
    resolve_jumps(&r);
    free_reader(&r);
    return r.function;
}

Function *read_function(const char *ptx, const char *name) { return read_from(ptx, name, find_entry(ptx, name), 0); }

static Function *read_called(const char *ptx, const char *name) {
    return read_from(ptx, name, find_called(ptx, name), 1);
}
