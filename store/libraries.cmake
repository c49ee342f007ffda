# SPDX-License-Identifier: BSD-3-Clause
#
# The libraries that the store and the tests need: the one table, which tools/setup.sh reads, too.
#
# lmcs_find_libraries() finds all, or ends with the names and packages of all that are missing. A library is the target
# PkgConfig::NAME, in capitals and without "lib". Those marked "load" need only their header if LMCS_LOAD_LIBRARIES is
# set, and libxxhash is a header alone. PLATFORMS.md says which names were tried.

# pkg-config  least  kind   header                Debian          Fedora             conda-forge (-: none known)
set(LMCS_LIBRARIES [[
libpmemobj    1.11   link   libpmemobj.h          libpmemobj-dev  libpmemobj-devel   -
libpmem       1.11   link   libpmem.h             libpmem-dev     libpmem-devel      -
libndctl      0      load   ndctl/libndctl.h      libndctl-dev    ndctl-devel        -
libdaxctl     0      load   daxctl/libdaxctl.h    libdaxctl-dev   daxctl-devel       -
numa          0      load   numa.h                libnuma-dev     numactl-devel      -
libisal       2.30   link   isa-l.h               libisal-dev     isa-l-devel        isa-l
jansson       2.13   link   jansson.h             libjansson-dev  jansson-devel      jansson
libxxhash     0      header xxhash.h              libxxhash-dev   xxhash-devel       xxhash
cmocka        0      test   cmocka.h              libcmocka-dev   libcmocka-devel    cmocka
]])

include(CheckIncludeFile)

# Sets `fault` to nothing, or to what is missing.
function(lmcs_find_library name least kind header fault)
    string(REGEX REPLACE "^lib" "" target "${name}")
    string(TOUPPER "${target}" target)
    set(${fault} "" PARENT_SCOPE)
    if(kind STREQUAL "header" OR (kind STREQUAL "load" AND LMCS_LOAD_LIBRARIES))
        if(kind STREQUAL "header")
            check_include_file(${header} LMC_HAVE_XXHASH)
            set(found ${LMC_HAVE_XXHASH})
            if(NOT found)
                unset(LMC_HAVE_XXHASH CACHE) # the next run looks again
            endif()
        else()
            find_path(LMCS_${target}_INCLUDE ${header})
            set(found ${LMCS_${target}_INCLUDE})
        endif()
        if(NOT found)
            set(${fault} "${name} (${header})" PARENT_SCOPE)
        endif()
        return()
    endif()
    pkg_check_modules(${target} QUIET IMPORTED_TARGET GLOBAL "${name}>=${least}")
    if(NOT ${target}_FOUND)
        execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --modversion ${name}
            OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
        if(version)
            set(${fault} "${name} ${least} (here: ${version})" PARENT_SCOPE)
        else()
            set(${fault} "${name}" PARENT_SCOPE)
        endif()
    endif()
endfunction()

function(lmcs_find_libraries)
    find_package(PkgConfig QUIET)
    if(NOT PKG_CONFIG_FOUND)
        message(FATAL_ERROR "pkg-config is missing (Debian: pkg-config, Fedora: pkgconf-pkg-config, conda-forge: "
            "pkg-config)")
    endif()
    string(REGEX MATCHALL "[^\n]+" rows "${LMCS_LIBRARIES}")
    foreach(row IN LISTS rows)
        string(REGEX REPLACE " +" ";" row "${row}")
        list(GET row 0 name)
        list(GET row 1 least)
        list(GET row 2 kind)
        list(GET row 3 header)
        if(kind STREQUAL "test" AND NOT LMCS_BUILD_TESTS)
            continue()
        endif()
        lmcs_find_library(${name} ${least} ${kind} ${header} fault)
        if(fault)
            list(APPEND faults "${fault}")
            foreach(system 4 5 6)
                list(GET row ${system} package)
                list(APPEND packages_${system} "${package}")
            endforeach()
        endif()
    endforeach()
    if(NOT faults)
        return()
    endif()
    list(JOIN faults ", " faults)
    list(JOIN packages_4 " " debian)
    list(JOIN packages_5 " " fedora)
    list(REMOVE_ITEM packages_6 "-")
    set(conda "")
    if(packages_6)
        list(JOIN packages_6 " " conda)
        set(conda ";\n  conda-forge: ${conda}")
    endif()
    # python/backend/ makes one line of it.
    message(FATAL_ERROR "Missing or too old: ${faults};\n"
        "  Debian: ${debian};\n"
        "  Fedora: ${fedora}${conda};\n"
        "  in a checkout, without root: tools/setup.sh --prefix DIR builds them")
endfunction()
