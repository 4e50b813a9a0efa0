// The opcodes of Python's pickle protocols 0 to 5, named after CPython's constants.
#pragma once

namespace cairn::pickle {

inline constexpr unsigned char kMark = '(';
inline constexpr unsigned char kStop = '.';
inline constexpr unsigned char kPop = '0';
inline constexpr unsigned char kPopMark = '1';
inline constexpr unsigned char kDup = '2';
inline constexpr unsigned char kFloat = 'F';
inline constexpr unsigned char kInt = 'I';
inline constexpr unsigned char kBinInt = 'J';
inline constexpr unsigned char kBinInt1 = 'K';
inline constexpr unsigned char kLong = 'L';
inline constexpr unsigned char kBinInt2 = 'M';
inline constexpr unsigned char kNone = 'N';
inline constexpr unsigned char kPersistentId = 'P';
inline constexpr unsigned char kBinPersistentId = 'Q';
inline constexpr unsigned char kReduce = 'R';
inline constexpr unsigned char kString = 'S';
inline constexpr unsigned char kBinString = 'T';
inline constexpr unsigned char kShortBinString = 'U';
inline constexpr unsigned char kUnicode = 'V';
inline constexpr unsigned char kBinUnicode = 'X';
inline constexpr unsigned char kAppend = 'a';
inline constexpr unsigned char kBuild = 'b';
inline constexpr unsigned char kGlobal = 'c';
inline constexpr unsigned char kDict = 'd';
inline constexpr unsigned char kAppends = 'e';
inline constexpr unsigned char kBinFloat = 'G';
inline constexpr unsigned char kGet = 'g';
inline constexpr unsigned char kBinGet = 'h';
inline constexpr unsigned char kInstance = 'i';
inline constexpr unsigned char kLongBinGet = 'j';
inline constexpr unsigned char kList = 'l';
inline constexpr unsigned char kObject = 'o';
inline constexpr unsigned char kPut = 'p';
inline constexpr unsigned char kBinPut = 'q';
inline constexpr unsigned char kLongBinPut = 'r';
inline constexpr unsigned char kSetItem = 's';
inline constexpr unsigned char kTuple = 't';
inline constexpr unsigned char kSetItems = 'u';
inline constexpr unsigned char kEmptyTuple = ')';
inline constexpr unsigned char kEmptyList = ']';
inline constexpr unsigned char kEmptyDict = '}';
// Protocol 2
inline constexpr unsigned char kProto = 0x80;
inline constexpr unsigned char kNewObject = 0x81;
inline constexpr unsigned char kExtension1 = 0x82;
inline constexpr unsigned char kExtension2 = 0x83;
inline constexpr unsigned char kExtension4 = 0x84;
inline constexpr unsigned char kTuple1 = 0x85;
inline constexpr unsigned char kTuple2 = 0x86;
inline constexpr unsigned char kTuple3 = 0x87;
inline constexpr unsigned char kNewTrue = 0x88;
inline constexpr unsigned char kNewFalse = 0x89;
inline constexpr unsigned char kLong1 = 0x8a;
inline constexpr unsigned char kLong4 = 0x8b;
// Protocol 3
inline constexpr unsigned char kBinBytes = 'B';
inline constexpr unsigned char kShortBinBytes = 'C';
// Protocol 4
inline constexpr unsigned char kShortBinUnicode = 0x8c;
inline constexpr unsigned char kBinUnicode8 = 0x8d;
inline constexpr unsigned char kBinBytes8 = 0x8e;
inline constexpr unsigned char kEmptySet = 0x8f;
inline constexpr unsigned char kAddItems = 0x90;
inline constexpr unsigned char kFrozenSet = 0x91;
inline constexpr unsigned char kNewObjectEx = 0x92;
inline constexpr unsigned char kStackGlobal = 0x93;
inline constexpr unsigned char kMemoize = 0x94;
inline constexpr unsigned char kFrame = 0x95;
// Protocol 5
inline constexpr unsigned char kByteArray8 = 0x96;
inline constexpr unsigned char kNextBuffer = 0x97;
inline constexpr unsigned char kReadOnlyBuffer = 0x98;

}  // namespace cairn::pickle
