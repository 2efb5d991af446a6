package ds41

import (
	"fmt"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// Version of the library that is running, "major.minor.patch".
func Version() string { return raw.Version() }

// HeaderVersion is the version of the header that this package was generated from.
func HeaderVersion() string {
	return fmt.Sprintf("%d.%d.%d", raw.DS41_VERSION_MAJOR, raw.DS41_VERSION_MINOR, raw.DS41_VERSION_PATCH)
}

// Backends lists the backends of this build, best first, whether or not they can run here.
func Backends() []string {
	var names []string
	for {
		name := raw.Backend_get_name(int32(len(names)))
		if name == "" {
			return names
		}
		names = append(names, name)
	}
}
