/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Every well-known string of the bus, once. */

#define BUS_NAME "org.sandboxd1"
#define BUS_PATH "/org/sandboxd1"
#define BUS_PATH_SANDBOX BUS_PATH "/sandbox"
#define BUS_PATH_TEMPLATE BUS_PATH "/template"
#define BUS_PATH_JOB BUS_PATH "/job"
#define BUS_INTERFACE_MANAGER "org.sandboxd1.Manager"
#define BUS_INTERFACE_SANDBOX "org.sandboxd1.Sandbox"
#define BUS_INTERFACE_PROCESS "org.sandboxd1.Process"
#define BUS_INTERFACE_TEMPLATE "org.sandboxd1.Template"
#define BUS_INTERFACE_JOB "org.sandboxd1.Job"

#define BUS_ERROR_INVALID_ARGUMENT "org.sandboxd1.Error.InvalidArgument"
#define BUS_ERROR_NO_SUCH_SANDBOX "org.sandboxd1.Error.NoSuchSandbox"
#define BUS_ERROR_NO_SUCH_PROCESS "org.sandboxd1.Error.NoSuchProcess"
#define BUS_ERROR_NO_SUCH_TEMPLATE "org.sandboxd1.Error.NoSuchTemplate"
#define BUS_ERROR_NO_SUCH_JOB "org.sandboxd1.Error.NoSuchJob"
#define BUS_ERROR_NAME_EXISTS "org.sandboxd1.Error.NameExists"
#define BUS_ERROR_WRONG_STATE "org.sandboxd1.Error.WrongState"
#define BUS_ERROR_TEMPLATE_MISMATCH "org.sandboxd1.Error.TemplateMismatch"
/* The message starts with "not found: " for ENOENT. */
#define BUS_ERROR_NOT_EXECUTABLE "org.sandboxd1.Error.NotExecutable"
#define BUS_ERROR_LIMIT_EXCEEDED "org.sandboxd1.Error.LimitExceeded"
#define BUS_ERROR_START_FAILED "org.sandboxd1.Error.StartFailed"
#define BUS_ERROR_UNAVAILABLE "org.sandboxd1.Error.Unavailable"
#define BUS_ERROR_TIMEOUT "org.sandboxd1.Error.Timeout"
