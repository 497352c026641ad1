"""Our multi-core model beside other simulators, on chips of one core and GEMMs that all of them express."""
