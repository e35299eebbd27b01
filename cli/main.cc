#include <iostream>

#include "maskless/core/version.h"

int main() { std::cout << "maskless " << maskless::kVersion << "\n"; }
